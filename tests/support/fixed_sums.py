"""Products of Triton's interpreter with a fixed order of sums, on any CPU."""

from typing import Any

import numpy as np
import pytest

from tests.support.decode_kernels import DEVICE


def plain_matmul(a: np.ndarray, b: np.ndarray, dtype: Any) -> np.ndarray:
    """a @ b with the terms of every sum added one after another, from the first to the last."""
    total = np.zeros((a.shape[0], b.shape[1]), dtype)
    for column, row in zip(a.T, b, strict=True):
        total += column[:, None].astype(dtype) * row.astype(dtype)
    return total


def fix_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter's tl.dot is a product of the CPU's BLAS, which may add up each row of a tile differently.

    A GPU's tensor core adds up all rows of a tile alike. With `plain_matmul` the interpreter does so too, on any
    CPU, so that equal bits mean what they mean on a GPU: the kernel feeds every row the same blocks.
    """
    if DEVICE == "cpu":
        monkeypatch.setattr(np, "matmul", plain_matmul)
