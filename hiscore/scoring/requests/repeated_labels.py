"""Labels that are given twice among an item's own."""

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.errors import RequestError

# Of the hash tables that find labels given twice; the factors are odd, the first is Knuth's by the golden ratio.
HASH_FACTORS = (0x9E3779B1, 0x85EBCA6B, 0xC2B2AE35)
HASH_SHIFT = 12
SLOTS_PER_KEY = 4
MOST_SLOTS = 2**20
"""4 MiB."""
FEW = 64
"""Up to so many shared labels are compared as a set of Python's numbers, which is fastest for few."""
ID_BITS = 31


def check_repeated(labels: Int32, counts: Int64 | None = None, first_item: int = 0) -> None:
    """Check that no label is there twice, or given `counts`, int64 [items], not among an item's own."""
    if counts is None and len(labels) <= FEW and len(set(labels.tolist())) == len(labels):
        return
    keys = labels.astype(np.int64)
    if counts is not None:
        keys += np.repeat(np.arange(len(counts)) << ID_BITS, counts)
    if not _is_any_repeated(keys):
        return
    values, occurrences = np.unique(keys, return_counts=True)
    item, label = divmod(int(values[occurrences.argmax()]), 1 << ID_BITS)
    of_item = "" if counts is None else f" for item {first_item + item}"
    raise RequestError(f"'label_token_ids' holds {label} more than once{of_item}")


def _is_any_repeated(keys: Int64) -> bool:
    """Tell whether any key is there twice, by hash tables: 50,000 keys take an eighth of the time of sorting them.

    Every key goes to a slot, which keeps one of its keys. Repeated keys share a slot: one of them is what the slot
    kept, or neither is. So those not kept are compared with what was, and then in a table of their own.
    """
    for factor in HASH_FACTORS:
        if not len(keys):
            return False
        slot_count = min(1 << (SLOTS_PER_KEY * len(keys)).bit_length(), MOST_SLOTS)
        slots = keys * factor
        slots >>= HASH_SHIFT
        slots &= slot_count - 1
        places = np.arange(len(keys), dtype=np.int32)
        # What is not written to is uninitialised, and never read.
        kept = np.empty(slot_count, np.int32)
        kept[slots] = places
        found = kept.take(slots, mode="wrap")  # all are inside; this mode is the fastest
        lost = np.flatnonzero(found != places)
        left = keys[lost]
        if (left == keys[found[lost]]).any():
            return True
        keys = left
    # Few are ever left, unless somebody chose them to share slots.
    return len(np.unique(keys)) < len(keys)
