"""Types of NumPy arrays, and what joins them."""

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


def joined(arrays: Sequence[Array]) -> Array:
    """Arrays of one dimension end to end, not to be written to: one alone, as in most batches, is not copied."""
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)
