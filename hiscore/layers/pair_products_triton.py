"""`layers.pair_products` on CUDA: launches the kernel of `hiscore.kernels.pair_products`."""

import torch
import triton
from torch import Tensor

from hiscore.kernels import pair_products

MAX_BLOCK = 1024


def multiply_pairs(x: Tensor, weight: Tensor, rows: Tensor, chosen: Tensor) -> Tensor:
    """See `pair_products.multiply_pairs`."""
    return _launch(x, weight, rows, chosen, len(chosen), 0)


def multiply_by_each(x: Tensor, weight: Tensor, chosen: Tensor) -> Tensor:
    """Multiply every row of x by all chosen rows of weight.

    Args:
        x: [R, width].
        weight: [N, width].
        chosen: int32 [n], of weight.

    Returns:
        float32 [R, n], to the bit what `multiply_pairs` gives for each.
    """
    return _launch(x, weight, chosen, chosen, len(x) * len(chosen), len(chosen)).view(len(x), len(chosen))


def compile_for(weight: Tensor) -> None:
    """Compile both, for rows in the weight's dtype."""
    first = torch.zeros(1, dtype=torch.int32, device=weight.device)
    multiply_pairs(weight[:1], weight, first, first)
    multiply_by_each(weight[:1], weight, first)


def _launch(x: Tensor, weight: Tensor, rows: Tensor, chosen: Tensor, pairs: int, each: int) -> Tensor:
    out = torch.empty(pairs, dtype=torch.float32, device=x.device)
    width = weight.shape[1]
    if pairs:
        pair_products.multiply_pairs[(pairs,)](
            x, weight, rows, chosen, out, each,
            WIDTH=width, BLOCK=min(triton.next_power_of_2(width), MAX_BLOCK), EVERY=each > 0,
        )  # fmt: skip
    return out
