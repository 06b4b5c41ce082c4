"""Writes safetensors files: https://github.com/huggingface/safetensors (README, "Format")."""

import json
import struct

import numpy as np

DTYPES = {"float64": "F64", "float32": "F32", "int32": "I32", "uint32": "U32", "uint8": "U8"}


def write(path, metadata, tensors):
    """`metadata`: str -> str; `tensors`: name -> numpy array. Larger element types come first, so all are aligned."""
    header, blobs, at = {"__metadata__": metadata}, [], 0
    for name, array in sorted(tensors.items(), key=lambda item: -item[1].dtype.itemsize):
        data = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": [at, at + len(data)],
        }
        blobs.append(data)
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(blobs))
