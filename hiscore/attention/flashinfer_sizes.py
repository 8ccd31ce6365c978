"""How large prefill forwards may become, and what FlashInfer allocates for them."""

from dataclasses import dataclass

from hiscore.attention.flashinfer_rows import MIN_ROWS

WORKSPACE_BYTES = 2**20
"""For sums of keys that are split among programs, which these kernels never do."""
PLAN_BYTES = 2**23
"""What each of FlashInfer's wrappers allocates for its plan, on the device and pinned on the host."""
LENGTHS_BYTES = 2**17
"""What it allocates for the lengths of sequences, on the device."""


@dataclass(frozen=True)
class PagedSizes:
    """How large forwards may become.

    Attributes:
        page_size: Tokens in a page of the pool.
        pages: Pages of the longest segment and its context.
        max_rows: Tokens of a forward at most.
        max_segments: Segments of a forward at most.
    """

    page_size: int
    pages: int
    max_rows: int
    max_segments: int


def buffer_bytes(sizes: PagedSizes) -> tuple[int, int]:
    """What `FlashInferAttention` allocates at most: bytes on the device, and pinned on the host."""
    tables = 4 * (most_pages(sizes) + 3 * sizes.max_segments + 2)
    plans = PLAN_BYTES * (2 if sizes.max_rows >= MIN_ROWS else 1)
    return WORKSPACE_BYTES + plans + LENGTHS_BYTES + tables, plans


def most_pages(sizes: PagedSizes) -> int:
    """Pages of all segments of a forward at most."""
    return max(sizes.max_segments * sizes.pages, -(-sizes.max_rows // sizes.page_size))
