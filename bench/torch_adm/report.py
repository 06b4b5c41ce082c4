"""Results as files: JSON with everything, and a table in Markdown, with the card, versions and date."""

import datetime
import json
import pathlib
import platform
import re
import subprocess

import torch


def environment(product):
    found = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "torch": torch.__version__, "python": platform.python_version(),
        "difuse": product.call(["--version"]).strip(), "card": platform.processor() or "CPU",
    }  # fmt: skip
    if product.device == "cuda":
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        driver = subprocess.run(query, capture_output=True, text=True).stdout.split("\n")[0]
        found.update(card=torch.cuda.get_device_name(), driver=driver, cuda=torch.version.cuda,
                     cudnn=torch.backends.cudnn.version())  # fmt: skip
        try:
            import triton

            found["triton"] = triton.__version__
        except ImportError:
            pass
    return found


def versions_line(environment):
    known = [f"{name} {value}" for name, value in environment.items() if name not in ("card", "date", "difuse")]
    return f"{environment['card']}; {environment['difuse']}; {', '.join(known)}; {environment['date']}"


def table(columns, rows):
    """Markdown, aligned; numbers are strings already."""
    cells = [columns, *rows]
    widths = [max(len(str(row[i])) for row in cells) for i in range(len(columns))]
    line = lambda row: "| " + " | ".join(str(cell).ljust(w) for cell, w in zip(row, widths)) + " |"
    return "\n".join([line(columns), "|" + "|".join("-" * (w + 2) for w in widths) + "|", *map(line, rows)])


def write(folder, name, data, text):
    """`folder`/<card>/<name>.json and .md; the paths."""
    card = re.sub(r"[^a-z0-9]+", "-", data["environment"]["card"].lower()).strip("-").removeprefix("nvidia-")
    place = pathlib.Path(folder) / card
    place.mkdir(parents=True, exist_ok=True)
    (place / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (place / f"{name}.md").write_text(text + "\n")
    print(f"{place / name}.json, .md", flush=True)
