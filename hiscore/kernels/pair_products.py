"""Inner products of pairs of rows, each summed by one program in an order that depends on the rows' size alone."""

import torch
import triton
import triton.language as tl
from torch import Tensor

MAX_BLOCK = 1024


# Where a batch's indices begin in its upload is a matter of chance.
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows", "chosen"])
def inner_products(
    x, weight, rows, chosen, out, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EVERY: tl.constexpr
):  # fmt: skip
    """Multiply rows of x by chosen rows of weight, in float32. Grid: (pairs,).

    In: x [R, WIDTH]; weight [N, WIDTH]; rows, chosen int32 [pairs]. Under EVERY chosen is [count], each row of x
    is multiplied by all of these, and pairs = R * count.
    Out: out float32 [pairs]. BLOCK: Columns that are added up at a time.
    """
    pair = tl.program_id(0)
    if EVERY:
        row, at = pair // count, pair % count
    else:
        row, at = tl.load(rows + pair), pair
    of_x = x + row.to(tl.int64) * WIDTH
    of_weight = weight + tl.load(chosen + at).to(tl.int64) * WIDTH
    total = tl.zeros([BLOCK], tl.float32)
    for begin in range(0, WIDTH, BLOCK):
        column = begin + tl.arange(0, BLOCK)
        inside = column < WIDTH
        one = tl.load(of_x + column, mask=inside, other=0.0).to(tl.float32)
        total += one * tl.load(of_weight + column, mask=inside, other=0.0).to(tl.float32)
    tl.store(out + pair, tl.sum(total, axis=0))


def multiply_pairs(x: Tensor, weight: Tensor, rows: Tensor, chosen: Tensor) -> Tensor:
    """Multiply rows of x by rows of weight, pair by pair; see `layers.pair_products`."""
    return _launch(x, weight, rows, chosen, len(chosen), 0)


def multiply_by_each(x: Tensor, weight: Tensor, chosen: Tensor) -> Tensor:
    """Multiply every row of x [R, width] by all chosen (int32 [n]) rows of weight [N, width].

    The result is float32 [R, n], to the bit what `multiply_pairs` gives for each pair.
    """
    return _launch(x, weight, chosen, chosen, len(x) * len(chosen), len(chosen)).view(len(x), len(chosen))


def compile_for(weight: Tensor) -> None:
    first = torch.zeros(1, dtype=torch.int32, device=weight.device)
    multiply_pairs(weight[:1], weight, first, first)
    multiply_by_each(weight[:1], weight, first)


def _launch(x: Tensor, weight: Tensor, rows: Tensor, chosen: Tensor, pairs: int, each: int) -> Tensor:
    out = torch.empty(pairs, dtype=torch.float32, device=x.device)
    width = weight.shape[1]
    if pairs:
        inner_products[(pairs,)](
            x, weight, rows, chosen, out, each,
            WIDTH=width, BLOCK=min(triton.next_power_of_2(width), MAX_BLOCK), EVERY=each > 0,
        )  # fmt: skip
    return out
