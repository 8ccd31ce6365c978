"""Block sizes that `tl.dot` takes."""

import triton


def dot_size(size: int) -> int:
    """The least block that holds `size` rows, columns or channels of a product: a power of two, from 16 on."""
    return max(16, triton.next_power_of_2(size))
