"""Heaps from which nothing is taken but the least entry: of the others, those that are out of date stay in them.

Whoever has such a heap for weeks drops them now and then, or it would grow as long as what is least changes.
"""

import heapq
from collections.abc import Callable
from typing import Any, TypeVar

Entry = TypeVar("Entry", bound=tuple[Any, ...])

SPARE = 64
"""Entries of a heap that is too small to be gone through."""


def drop_stale(heap: list[Entry], is_current: Callable[[Entry], bool], current: int) -> None:
    """Drop the entries of a heap that are out of date, if they are more than the others.

    Args:
        heap: Is changed in place.
        is_current: Whether an entry is not out of date.
        current: How many are not, at most.
    """
    if len(heap) > 2 * current + SPARE:
        heap[:] = filter(is_current, heap)
        heapq.heapify(heap)
