"""Very large calls are sent as several requests, so that none exceeds what one request should hold."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ChunkLimits:
    """What one request may hold before a call is split; the server has limits of its own, which are higher.

    Each chunk carries the query again, so smaller chunks cost more work in all.
    """

    max_items: int = 2_048
    max_bytes: int = 2 * 2**20
    """Bytes of text in one request of `score`: query, labels and items."""
    max_tokens: int = 262_144
    """Tokens in one request of `score_ids`: query and items, delimiters included."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}: must be at least 1")


def split(sizes: Sequence[int], fixed: int, max_items: int, max_size: int) -> list[slice]:
    """Cut items into runs, as few as their order allows; no items still make one, empty run.

    sizes: each item's size; fixed: the size of what every request repeats. An item that does not fit by itself
    gets a run of its own: whether that is too much is for the server to say.
    """
    runs: list[slice] = []
    start, held = 0, fixed
    for place, size in enumerate(sizes):
        if place > start and (place - start == max_items or held + size > max_size):
            runs.append(slice(start, place))
            start, held = place, fixed
        held += size
    runs.append(slice(start, len(sizes)))
    return runs
