"""Splitting a very large call into several requests, so that none exceeds what one request should hold."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ChunkLimits:
    """Bounds of one request, beyond which a call is split; the server's own are higher.

    Each chunk sends the query again, so smaller chunks cost more work in total.

    Args:
        max_items: Items in one request.
        max_bytes: Bytes of text in one request of `score`: query, labels and items.
        max_tokens: Tokens in one request of `score_ids`: query and items, delimiters included.

    Raises:
        ValueError: A limit below 1.
    """

    max_items: int = 2_048
    max_bytes: int = 2 * 2**20
    max_tokens: int = 262_144

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise ValueError(f"{name} is {value}: must be at least 1")


def split_into_chunks(sizes: Sequence[int], shared: int, max_items: int, max_size: int) -> list[slice]:
    """Split items into as few consecutive chunks as their order allows.

    An item that exceeds the limit on its own gets its own chunk; whether it is too large is for the server to say.

    Args:
        sizes: Size of each item.
        shared: Size of what every chunk repeats.
        max_items: Items per chunk.
        max_size: Size per chunk, ``shared`` included.

    Returns:
        Slices of the items; one empty slice if there are none.
    """
    chunks: list[slice] = []
    start, chunk_size = 0, shared
    for index, size in enumerate(sizes):
        if index > start and (index - start == max_items or chunk_size + size > max_size):
            chunks.append(slice(start, index))
            start, chunk_size = index, shared
        chunk_size += size
    chunks.append(slice(start, len(sizes)))
    return chunks
