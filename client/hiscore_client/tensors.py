"""Arguments of a call, validated and converted to the tensors of a request, with Triton's batch dimension of 1."""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import InferInput

from hiscore_client.errors import InvalidRequest

# What callers pass as token ids, and what they become: int32 [n].
TokenIds: TypeAlias = Sequence[int] | npt.NDArray[np.integer[Any]]
IdArray: TypeAlias = npt.NDArray[np.int32]

# The id at a delimiter's position; the server never looks at it.
DELIMITER_ID = 0
INT32 = np.iinfo(np.int32)
# For input files: undecodable bytes pass as surrogates, so that `encode_text` refuses only the text with them.
UTF8_ERRORS = "surrogateescape"


def encode_text(name: str, text: str) -> bytes:
    """Encode one text as UTF-8.

    Raises:
        InvalidRequest: Not a string, or it contains half of a surrogate pair.
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
    """Encode a list of texts as UTF-8.

    Raises:
        InvalidRequest: A single string, which would be taken for its characters, or a text that cannot be encoded.
    """
    if isinstance(texts, str | bytes):
        raise InvalidRequest(f"'{name}' must be a list of strings, not one string")
    return [encode_text(f"'{name}' at place {index}", text) for index, text in enumerate(texts)]


def as_id_array(name: str, ids: TokenIds) -> IdArray:
    """Convert token ids to int32 [n].

    Raises:
        InvalidRequest: Not a flat list of integers, or an id does not fit int32.
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


def as_id_arrays(name: str, lists: Sequence[TokenIds]) -> list[IdArray]:
    """Convert several lists of token ids as `as_id_array` does, lists of Python's all at once."""
    # Among integers NumPy takes True for 1; a list of nothing else is refused.
    if all(type(ids) is list and not (ids and type(ids[0]) is bool) for ids in lists):
        try:
            flat = np.array([each for ids in lists for each in ids])
        except ValueError:
            flat = np.empty((0, 0))
        if flat.ndim == 1 and flat.dtype.kind in "iu" and INT32.min <= flat.min() and flat.max() <= INT32.max:
            return np.split(flat.astype(np.int32), np.cumsum([len(ids) for ids in lists])[:-1])
    return [as_id_array(f"{name} at place {index}", ids) for index, ids in enumerate(lists)]


def insert_delimiters(query: IdArray, items: Sequence[IdArray]) -> tuple[IdArray, IdArray]:
    """Lay out a call for `scorer`: the query, then a delimiter before each item and one after the last.

    Returns:
        input_ids: int32 [tokens].
        delimiter_indices: int32 [items + 1].
    """
    delimiter = np.array([DELIMITER_ID], dtype=np.int32)
    parts = [query, delimiter]
    for item in items:
        parts += [item, delimiter]
    lengths = np.array([len(query), *map(len, items)], dtype=np.int64)
    return np.concatenate(parts), (np.cumsum(lengths + 1) - 1).astype(np.int32)


def id_tensor(name: str, ids: IdArray) -> InferInput:
    """An INT32 tensor [1, n]."""
    tensor = InferInput(name, [1, len(ids)], "INT32")
    tensor.set_data_from_numpy(ids[np.newaxis])
    return tensor


def text_tensor(name: str, texts: Sequence[bytes]) -> InferInput:
    """A BYTES tensor [1, n]."""
    values = np.empty((1, len(texts)), dtype=np.object_)
    values[0, :] = texts
    tensor = InferInput(name, [1, len(texts)], "BYTES")
    tensor.set_data_from_numpy(values)
    return tensor
