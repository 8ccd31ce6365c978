"""Choice of the sequences that select, or attend to everything again, under SELECTOR=auto.

A sequence attends to everything while it is on the device as a whole. When the device's pool is full the longest
is spilled: it is preempted, and goes on from its host pages with a buffer. The longest frees the most that way,
and selecting from many pages loses the least. It comes back when no other waits and there is room for all that it
may still generate, so that it is not soon spilled once more; the shortest first, one at a time.
"""

from collections.abc import Iterable

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.sequence import Sequence

LEAST_LEFT = 64
"""Tokens that a sequence must still generate to be worth the copy of all that it has."""


def to_spill(sequences: Iterable[Sequence], cache_config: CacheConfig) -> Sequence | None:
    """Choose the longest sequence that attends to everything and would hold less if it selected."""
    buffer = cache_config.buffer_pages * cache_config.page_size
    resident = [each for each in sequences if each.resident and _tokens(each) >= buffer]
    return max(resident, key=_tokens, default=None)


def to_recall(running: Iterable[Sequence], free: int, cache_config: CacheConfig) -> Sequence | None:
    """Choose the shortest spilled sequence, if so many free device pages have room for all of it."""
    spilled = [each for each in running if each.call.params.sparse and not each.resident]
    spilled = [each for each in spilled if each.tokens_left >= LEAST_LEFT]
    first = min(spilled, key=lambda each: each.length, default=None)
    if first is None:
        return None
    pages = -(-(first.length + first.tokens_left + 1) // cache_config.page_size) + cache_config.block_pages
    return first if min(pages, cache_config.max_pages) - len(first.held.device_pages) <= free else None


def _tokens(sequence: Sequence) -> int:
    return max(sequence.length, len(sequence.call.prompt))
