"""Types of NumPy arrays, and what joins and compares them."""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Bool = npt.NDArray[np.bool_]
Int32 = npt.NDArray[np.int32]
Int64 = npt.NDArray[np.int64]
Float32 = npt.NDArray[np.float32]
Float64 = npt.NDArray[np.float64]
Outputs = dict[str, npt.NDArray[Any]]
"""The tensors of a response, by name."""

Array = TypeVar("Array", bound=npt.NDArray[Any])
Row = TypeVar("Row", list[int], tuple[int, ...], str)


def divided(wholes: Int32 | Int64, parts: int) -> Int32:
    """Number the parts of numbered wholes, such as blocks of pages or pages of tokens, in order: int32."""
    return (wholes[:, None] * parts + np.arange(parts, dtype=np.int32)).ravel().astype(np.int32)


def common_prefix(rows: Sequence[Row]) -> int:
    """Count the leading ids, or characters, that all rows share: those of the lowest and the highest of them."""
    low, high = min(rows), max(rows)
    shortest = min(len(low), len(high))
    return next((index for index in range(shortest) if low[index] != high[index]), shortest)


def joined(arrays: Sequence[Array]) -> Array:
    """Arrays of one dimension end to end, not to be written to: one alone, as in most batches, is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
