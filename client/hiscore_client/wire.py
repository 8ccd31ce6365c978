"""From what a caller gives to the tensors of a request: checked, laid out, with Triton's leading dimension."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import InferInput

from hiscore_client.errors import InvalidRequest

Ids = npt.NDArray[np.int32]

# What stands between two items in a layout; the server never looks at it.
FILLER_ID = 0
INT32 = np.iinfo(np.int32)


def encode_text(name: str, text: str) -> bytes:
    """UTF-8 bytes of one text.

    Raises:
        InvalidRequest: not a string, or half of a surrogate pair in it.
    """
    if not isinstance(text, str):
        raise InvalidRequest(f"{name} must be a string, not {type(text).__name__}")
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise InvalidRequest(
            f"{name} is not valid Unicode: {error.reason} at character {error.start}"
        ) from None


def encode_texts(name: str, texts: Iterable[str]) -> list[bytes]:
    """UTF-8 bytes of each text; one string in place of a list is refused, as it would count as its characters."""
    if isinstance(texts, str | bytes):
        raise InvalidRequest(f"'{name}' must be a list of strings, not one string")
    return [encode_text(f"'{name}' at place {place}", text) for place, text in enumerate(texts)]


def as_ids(name: str, ids: Sequence[int] | npt.NDArray[np.integer[Any]]) -> Ids:
    """Token ids as int32 [n].

    Raises:
        InvalidRequest: not a flat list of whole numbers, or one that no int32 holds.
    """
    try:
        values = np.asarray(ids)
    except ValueError:
        raise InvalidRequest(f"{name} must be a flat list of token ids") from None
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise InvalidRequest(f"{name} must be a flat list of token ids")
    if values.size and not (INT32.min <= values.min() and values.max() <= INT32.max):
        raise InvalidRequest(f"{name} holds an id beyond {INT32.max}, the largest int32")
    return values.astype(np.int32)


def lay_out(query: Ids, items: Sequence[Ids]) -> tuple[Ids, Ids]:
    """Build ``(input_ids, delimiter_indices)``, int32 [tokens] and [items + 1].

    The query, then for each item a delimiter and the item's tokens, then one last delimiter.
    """
    filler = np.array([FILLER_ID], dtype=np.int32)
    parts = [query, filler]
    for item in items:
        parts += [item, filler]
    lengths = np.array([len(query), *map(len, items)], dtype=np.int64)
    return np.concatenate(parts), (np.cumsum(lengths + 1) - 1).astype(np.int32)


def ids_input(name: str, ids: Ids) -> InferInput:
    """An INT32 tensor [1, n]."""
    tensor = InferInput(name, [1, len(ids)], "INT32")
    tensor.set_data_from_numpy(ids[np.newaxis])
    return tensor


def text_input(name: str, texts: Sequence[bytes]) -> InferInput:
    """A BYTES tensor [1, n]."""
    values = np.empty((1, len(texts)), dtype=np.object_)
    values[0, :] = texts
    tensor = InferInput(name, [1, len(texts)], "BYTES")
    tensor.set_data_from_numpy(values)
    return tensor
