"""Checks of request parameters and tensors that all models share.

gRPC sends an error message in a header, and one that is too long arrives as another error: values are shortened.
"""

import json
import math
import reprlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from hiscore.arrays import Int32
from hiscore.errors import RequestError


def known_only(parameters: str, known: Sequence[str]) -> dict[str, object]:
    """Parse a request's parameters, a JSON object or an empty string.

    Raises:
        RequestError: A name is not among the known ones.
    """
    given: dict[str, object] = json.loads(parameters) if parameters else {}
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise RequestError(f"unknown parameter '{unknown[0][:64]}': known are {', '.join(known)}")
    return given


def flag(name: str, value: object) -> bool:
    """Check that a parameter is true or false."""
    if not isinstance(value, bool):
        raise RequestError(f"parameter '{name}' must be true or false, not {reprlib.repr(value)}")
    return value


def number(name: str, value: object) -> float:
    """Check that a parameter is a finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise RequestError(f"parameter '{name}' must be a number, not {reprlib.repr(value)}")
    try:
        read = float(value)
    except OverflowError:  # an integer beyond every float
        read = math.inf
    if not math.isfinite(read):  # Python's JSON parser accepts NaN and Infinity
        raise RequestError(f"parameter '{name}' must be finite, not {reprlib.repr(value)}")
    return read


def integer(name: str, value: object, least: int, most: int) -> int:
    """Check that a parameter is a whole number between two bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise RequestError(f"parameter '{name}' must be an integer, not {reprlib.repr(value)}")
    if not least <= value <= most:
        bound = f"at least {least}" if value < least else f"at most {most}"
        raise RequestError(f"parameter '{name}' must be {bound}, not {reprlib.repr(value)}")
    return value


def entries(
    name: str,
    value: object,
    kind: type[list[Any]] | type[dict[str, Any]],
    of: str,
    most: int | None = None,
    each: type | None = None,
) -> Any:
    """Read a list or an object, sent as JSON, of at most so many entries; `each` is the type of a list's."""
    try:
        found = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kind) or (each is not None and set(map(type, found)) - {each}):
        raise RequestError(
            f"parameter '{name}' must be a string that holds a {of}, not {reprlib.repr(value)}"
        )
    if most is not None and len(found) > most:
        raise RequestError(f"parameter '{name}' has {len(found)} entries: at most {most}")
    return found


def one_row(name: str, values: npt.NDArray[np.generic], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """Take the only row of a tensor with Triton's leading batch dimension, as a view: [1, n] to [n].

    Raises:
        RequestError: The tensor has another shape or dtype.
    """
    if values.ndim != 2:
        raise RequestError(f"'{name}' must have shape [1, n], not {list(values.shape)}")
    if values.shape[0] != 1:
        raise RequestError(f"'{name}' has {values.shape[0]} rows: send one call per request, shape [1, n]")
    if values.dtype != dtype:
        raise RequestError(f"'{name}' must be {np.dtype(dtype).name}, not {values.dtype.name}")
    row: npt.NDArray[Any] = values[0]
    return row


def check_ids(name: str, ids: Int32, vocab_size: int) -> None:
    """Check that every id of int32 [n] is a row of the model's embedding, as those of added tokens are.

    Raises:
        RequestError: An id is none of its rows.
    """
    # As unsigned numbers the negative ones are the largest.
    if ids.view(np.uint32).max(initial=0) >= vocab_size:
        wrong = (ids < 0) | (ids >= vocab_size)
        raise RequestError(
            f"'{name}' holds {int(ids[wrong.argmax()])}: ids of this model are 0 to {vocab_size - 1}"
        )
