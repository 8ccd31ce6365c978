"""The numbers of rows to which forwards on CUDA are padded."""

MIN_ROWS = 128
"""Of any product. For fewer, cuBLAS without split sums (`device.fix_product_sums`) has kernels that take ten times
as long, and for one row a kernel with other bits."""


def most_rows(max_rows: int) -> int:
    """Rows of the largest forward, with its padding."""
    return max(-(-max_rows // 64) * 64, MIN_ROWS)


def capture_sizes(max_rows: int) -> list[int]:
    """The numbers of rows to capture. From `MIN_ROWS` on padding costs 6% on average and at most 12%."""
    sizes, rows = [], MIN_ROWS
    while rows < max_rows:
        sizes.append(rows)
        rows += max(64, 2 ** (rows.bit_length() - 4))
    return [*sizes, most_rows(max_rows)]
