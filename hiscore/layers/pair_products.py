"""Inner products of pairs of rows in float32, each the same to the bit whatever else is computed with it.

A matrix product promises no such thing: libraries choose a kernel, and with it the order of a sum, by its shape.
"""

import torch
from torch import Tensor

PRODUCTS_AT_ONCE = 2**24
"""Products of numbers that a CPU has in memory at once: 64 MiB in float32."""


def multiply_pairs(x: Tensor, weight: Tensor, rows: Tensor, chosen: Tensor) -> Tensor:
    """Multiply rows of x [R, width] by chosen rows of weight [N, width], pair by pair (int32 [n]): float32 [n]."""
    if x.is_cuda:
        from hiscore.kernels import pair_products

        return pair_products.multiply_pairs(x, weight, rows, chosen)
    at_once = max(PRODUCTS_AT_ONCE // weight.shape[1], 1)
    parts = [x.new_empty(0, dtype=torch.float32)]
    for row, other in zip(rows.split(at_once), chosen.split(at_once), strict=True):
        products = x.index_select(0, row).float()
        products *= weight.index_select(0, other).float()
        while (width := products.shape[1]) > 1:
            half = (width + 1) // 2
            products[:, : width - half].add_(products[:, half:])
            products = products[:, :half]
        parts.append(products[:, 0])
    return torch.cat(parts)
