"""Block sizes of a kernel's products."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Tile:
    """Block sizes of the products, and how they are launched."""

    rows: int
    outputs: int
    inputs: int
    """Added up at a time."""
    warps: int
    stages: int
