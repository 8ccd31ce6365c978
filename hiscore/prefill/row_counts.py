"""The numbers of rows to which forwards on CUDA are padded, and the slices in which many rows are launched."""

from itertools import pairwise

MIN_ROWS = 128
"""Least rows of a product. For fewer, cuBLAS without split sums (`device.fix_product_sums`) has kernels that take
ten times as long, and for one row a kernel with other bits."""


def most_rows(max_rows: int) -> int:
    return max(-(-max_rows // 64) * 64, MIN_ROWS)


def capture_sizes(max_rows: int) -> list[int]:
    """The numbers of rows to capture. From `MIN_ROWS` on padding costs 6% on average and at most 12%."""
    sizes, rows = [], MIN_ROWS
    while rows < max_rows:
        sizes.append(rows)
        rows += max(64, 2 ** (rows.bit_length() - 4))
    return [*sizes, most_rows(max_rows)]


SHORT_ROWS = 1_152
"""Rows of a forward that may be computed between two slices of another: see `batching.request_order`."""
START_ROWS, SLICE_ROWS = 512, 2_304
"""The start of a forward takes as long as so many rows, and a slice at most as long as so many, start included."""


def slices_of(rows: int, layers: int) -> list[range]:
    """The layers of each slice of a forward: consecutive, and as many in each as far as possible."""
    slices = 1 if rows <= SHORT_ROWS else min(-(-(rows + START_ROWS) // SLICE_ROWS), layers)
    ends = [layers * (index + 1) // slices for index in range(slices)]
    return [range(begin, end) for begin, end in pairwise([0, *ends])]


def rows_between(max_rows: int, in_slices: bool) -> int:
    """Rows of a forward that may be computed between two slices of another; 0: there are no slices."""
    return SHORT_ROWS if in_slices and max_rows > SHORT_ROWS else 0


def output_rows(max_rows: int, in_slices: bool) -> int:
    """Rows that the largest forward leaves, and one that is computed between its slices."""
    return most_rows(max_rows) + rows_between(max_rows, in_slices)
