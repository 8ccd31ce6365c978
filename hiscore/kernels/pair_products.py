"""Inner products of pairs of rows, each summed by one program in an order that depends on the rows' size alone."""

import triton
import triton.language as tl


# Where a batch's indices begin in its upload is a matter of chance.
@triton.jit(do_not_specialize=["count"], do_not_specialize_on_alignment=["rows", "chosen"])
def multiply_pairs(
    x, weight, rows, chosen, out, count, WIDTH: tl.constexpr, BLOCK: tl.constexpr, EVERY: tl.constexpr
):  # fmt: skip
    """Multiply rows of x by chosen rows of weight, in float32. Grid: (pairs,).

    Args:
        x: [R, WIDTH].
        weight: [N, WIDTH].
        rows: int32 [pairs], of x; not read under EVERY.
        chosen: int32 [pairs], of weight; under EVERY [count].
        out: Out: float32 [pairs].
        count: Rows of weight that each row of x is multiplied by, under EVERY: pairs are then R * count.
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
