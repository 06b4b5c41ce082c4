"""Reads and writes safetensors files: https://github.com/huggingface/safetensors (README, "Format")."""

import json
import struct

import numpy as np
import torch

NAMES = {
    torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64",
    torch.int32: "I32", torch.uint8: "U8",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}


def write(path, tensors):
    """`tensors`: name -> torch tensor."""
    header, blobs, at = {}, [], 0
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        data = (tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor).numpy().tobytes()
        header[name] = {
            "dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + len(data)]
        }  # fmt: skip
        blobs.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)


def read(path):
    with open(path, "rb") as file:
        content = bytearray(file.read())
    start = 8 + struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8:start])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = (start + offset for offset in entry["data_offsets"])
        values = np.frombuffer(bytes(content[begin:end]), dtype=np.uint8).copy()
        tensors[name] = torch.from_numpy(values).view(DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors
