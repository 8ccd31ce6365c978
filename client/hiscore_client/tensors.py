"""Arguments of a call, validated and laid out as the server takes them."""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

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
    if (converted := _from_lists([ids])) is not None:
        return converted
    try:
        values = np.asarray(ids)
    except ValueError:
        raise InvalidRequest(f"{name} must be a flat list of token ids") from None
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise InvalidRequest(f"{name} must be a flat list of token ids")
    if values.size and not (INT32.min <= values.min() and values.max() <= INT32.max):
        raise InvalidRequest(f"{name} holds an id beyond {INT32.max}, the largest int32")
    return values.astype(np.int32)


@dataclass(frozen=True, eq=False)
class Layout:
    """A call for `scorer`: the query, then a delimiter before each item and one after the last.

    Args:
        ids: int32 [tokens].
        delimiters: int32 [items + 1], their indices.
        sizes: Tokens of each item with the delimiter before it.
    """

    ids: IdArray
    delimiters: IdArray
    sizes: list[int]

    def part(self, chunk: slice) -> "Layout":
        """The same query with some of the items."""
        if chunk.stop - chunk.start == len(self.sizes):
            return self
        query, own = self.delimiters[0], self.delimiters[chunk.start : chunk.stop + 1]
        ids = np.concatenate([self.ids[:query], self.ids[own[0] : own[-1] + 1]])
        return Layout(ids, own - own[0] + query, self.sizes[chunk])


def lay_out(query_ids: TokenIds, item_ids: Sequence[TokenIds]) -> Layout:
    """Validate the ids of a call and lay it out.

    Raises:
        InvalidRequest: As `as_id_array`; the message says which list.
    """
    lists = [query_ids, *item_ids]
    ids = _from_lists(lists, [DELIMITER_ID])
    if ids is None:
        arrays = [as_id_array("'query_ids'", query_ids)]
        arrays += [as_id_array(f"'item_ids' at place {place}", each) for place, each in enumerate(item_ids)]
        delimiter = np.array([DELIMITER_ID], np.int32)
        ids = np.concatenate([part for each in arrays for part in (each, delimiter)])
    query, *sizes = [len(each) + 1 for each in lists]
    # In Python: of a call's few items NumPy takes longer to begin than to add.
    delimiters = list(accumulate(sizes, initial=query - 1))
    return Layout(ids, np.array(delimiters, np.int32), sizes)


def _from_lists(lists: Sequence[TokenIds], end: Sequence[int] = ()) -> IdArray | None:
    """Lists of Python's, one after the other, several times as fast as by NumPy; None: NumPy has to look.

    Args:
        lists: At least one.
        end: Comes after each.
    """
    # Among integers True is 1, as for NumPy; a list of nothing else is refused.
    if not all(type(ids) is list and not (ids and type(ids[0]) is bool) for ids in lists):
        return None
    flat: list[int] = []
    for ids in lists:
        flat += ids
        flat += end
    try:
        return np.frombuffer(struct.pack(f"{len(flat)}i", *flat), np.int32)
    except struct.error:
        return None
