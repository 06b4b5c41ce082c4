"""The flags that all scripts of this folder have."""

import argparse


def parser(description, results):
    """`results` names the files that --results writes, below <card>/."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--difuse", default="build/release/difuse", help="the binary")
    made.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    made.add_argument("--json", help="a file for all results")
    made.add_argument("--results", help=f"a folder: <card>/{results}.json and .md")
    return made
