"""Limits of prefill forwards, and the memory that FlashInfer allocates for them."""

from dataclasses import dataclass

from hiscore.attention.flashinfer_rows import MIN_ROWS

WORKSPACE_BYTES = 2**20
"""Workspace for keys split among programs, which these kernels never do."""
PLAN_BYTES = 2**23
"""Memory of a FlashInfer wrapper's plan, on the device and pinned on the host."""
LENGTHS_BYTES = 2**17
"""Memory of a wrapper for the lengths of sequences, on the device."""


@dataclass(frozen=True)
class PagedSizes:
    """Limits of a prefill forward; `pages` hold the longest segment and its context."""

    page_size: int
    pages: int
    max_rows: int
    max_segments: int


def buffer_bytes(sizes: PagedSizes) -> tuple[int, int]:
    """Bytes that `FlashInferAttention` allocates at most: on the device, and pinned on the host."""
    tables = 4 * (most_pages(sizes) + 3 * sizes.max_segments + 2)
    plans = PLAN_BYTES * (2 if sizes.max_rows >= MIN_ROWS else 1)
    return WORKSPACE_BYTES + plans + LENGTHS_BYTES + tables, plans


def most_pages(sizes: PagedSizes) -> int:
    return max(sizes.max_segments * sizes.pages, -(-sizes.max_rows // sizes.page_size))
