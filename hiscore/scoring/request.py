"""The packed layout of one call: query, then for each item a delimiter and the item, then one last delimiter.

Delimiters are fillers: they mark where items begin and end for whoever builds or reads the layout, their ids
are never looked at, and they are dropped before anything is computed. ``delimiter_indices`` are known while
the layout is built, so nothing downstream ever searches for one.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hiscore.arrays import Int32

# Any id would do, since nothing reads it; 0 exists in every vocabulary.
FILLER_ID = 0


@dataclass(frozen=True)
class Call:
    """One call without its fillers: the query's tokens, then every item's, end to end.

    tokens: int32 [query_length + sum(item_lengths)]; item_lengths: int64 [items], zeros allowed.
    """

    tokens: Int32
    query_length: int
    item_lengths: npt.NDArray[np.int64]


def lay_out(query: Sequence[int], items: Sequence[Sequence[int]]) -> tuple[Int32, Int32]:
    """Build ``(input_ids, delimiter_indices)``, both int32, from a query and its items' token ids."""
    ids = list(query)
    delimiters = [len(ids)]
    ids.append(FILLER_ID)
    for item in items:
        ids.extend(item)
        delimiters.append(len(ids))
        ids.append(FILLER_ID)
    return np.asarray(ids, dtype=np.int32), np.asarray(delimiters, dtype=np.int32)


def unpack(input_ids: Int32, delimiter_indices: Int32) -> Call:
    """Drop the fillers of a layout that `validation.check_layout` has accepted."""
    delimiters = delimiter_indices.astype(np.int64)
    return Call(
        tokens=np.delete(input_ids, delimiters),
        query_length=int(delimiters[0]),
        item_lengths=np.diff(delimiters) - 1,
    )
