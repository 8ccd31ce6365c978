"""Bytes of a checkpoint's weights once they are loaded, from the headers of its safetensors files alone."""

import json
import re
from collections.abc import Iterator
from math import prod
from pathlib import Path

NUMBER_BYTES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
    "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1,
}  # fmt: skip
CONVERTED = ("F64", "F32", "F16", "BF16")
"""Converted to the model's dtype; others stay as they are."""
PROJECTION = re.compile(r"_proj\.weight$")


def weight_bytes(checkpoint: Path, number_bytes: int, projections_in_fp8: bool = False) -> int:
    """Bytes of all tensors in the model's dtype.

    Args:
        checkpoint: Directory with safetensors.
        number_bytes: Of one number of the dtype.
        projections_in_fp8: Whether projections take one byte for each weight instead.
    """
    total = 0
    for name, dtype, shape in _tensors(checkpoint):
        size = number_bytes if dtype in CONVERTED else NUMBER_BYTES[dtype]
        total += prod(shape) * (1 if projections_in_fp8 and PROJECTION.search(name) else size)
    return total


def _tensors(checkpoint: Path) -> Iterator[tuple[str, str, list[int]]]:
    """Name, dtype and shape of every tensor. A file starts with the length of its header in 8 bytes."""
    for path in sorted(checkpoint.glob("model*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
        for name, entry in header.items():
            if name != "__metadata__":
                yield name, entry["dtype"], entry["shape"]
