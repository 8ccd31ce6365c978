"""Find the tokens among which filters end, without sorting; `hiscore.kernels.sample_draw` draws one.

A row is cut into splits, so that a few rows use the whole device. Candidates are the tokens whose weight reaches
the bin that certainly leaves enough for top-k or top-p: few, where logits are far apart. Where they are not, the
bins among which the last may lie are cut into parts. Weights are integers, so no sum depends on its order.

Tensors of a draw's kernels:
    logits, maxima: float32 [R, stride], [R, splits]. sums: int64 [2, R, splits]. bins: int32 [R, 256].
    ranges: float64 [5, R], see `RANGES`. base, masses: int64 [R], [R, PARTS]. found: int32 [2, R].
    listed: int64 [R, LISTED].
"""

import triton
import triton.language as tl

from hiscore.kernels.fixed_point import (
    bin_of,
    edge_of_bin,
    float_weights,
    least_of_bin,
    load_split,
    places_of,
    row_max,
)
from hiscore.kernels.gemv import launch_dependents, wait_for_predecessors
from hiscore.kernels.sampling_options import filters, option, weighing

BINS = 256
"""Bins of weights: see `fixed_point.bin_of`."""
_BINS = tl.constexpr(BINS)
RANGES = 5
"""Facts about a row's candidates, float64 [5, R], for rows with filters."""
# The least float weight that they have, and more than they have; how many tokens or what mass filters keep, 0
# where no parts are needed; how many bits of a float32 a part leaves out; the row's largest logit.
_LEAST, _BEYOND, _GOAL, _SHIFT, _LARGEST = (tl.constexpr(place) for place in range(RANGES))


@triton.jit
def _begin(row_options, vocabulary, row, rows, CHAINED: tl.constexpr):
    """Begin behind the kernel before, with a row's options: no kernel writes these, so they need no wait."""
    launch_dependents(CHAINED)
    temperature, scale, least = weighing(row_options, rows, row)
    k, p, filtered = filters(row_options, rows, row, vocabulary)
    wait_for_predecessors(CHAINED)
    return temperature != 0.0, (temperature != 0.0) & filtered, scale, least, k, p


@triton.jit
def count_weights(
    logits, row_options, maxima, sums, bins, vocabulary, stride,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Sum the weights of each split, and count those of rows with filters by bin. Grid: (splits, R).

    In: logits, maxima. Out: the first half of sums. In place: bins.
    """
    split, row, splits, rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)
    draws, filtered, scale, least, _, _ = _begin(row_options, vocabulary, row, rows, CHAINED)
    if draws == 0:
        return
    _, values = load_split(logits + row.to(tl.int64) * stride, split, vocabulary, BLOCK)
    weights = float_weights(values, row_max(maxima, row, splits, SPLITS), scale, least)
    tl.store(sums + row * splits + split, tl.sum(weights.to(tl.int64), axis=0))
    if filtered:
        counts = tl.histogram(bin_of(weights), _BINS, mask=weights > 0.0)
        number = tl.arange(0, _BINS)
        tl.atomic_add(bins + row * _BINS + number, counts, mask=counts > 0, sem="relaxed")


@triton.jit
def find_range(
    row_options, maxima, sums, bins, ranges, base, found, masses, vocabulary, splits,
    SPLITS: tl.constexpr, LISTED: tl.constexpr, PARTS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Find the range of the last token that filters keep, by the least and the most that bins hold. Grid: (R,).

    In: maxima, sums, bins. Out: ranges; and 0 in base, found and masses for the kernels that follow.
    """
    row, rows = tl.program_id(0), tl.num_programs(0)
    _, filtered, _, _, k, p = _begin(row_options, vocabulary, row, rows, CHAINED)
    if filtered == 0:
        return
    each = tl.arange(0, SPLITS)
    number = tl.arange(0, _BINS)
    total = tl.sum(tl.load(sums + row * splits + each, mask=each < splits, other=0), axis=0)
    counts = tl.load(bins + row * _BINS + number)
    by_count = k > 0
    goal = tl.where(by_count, k.to(tl.float64), p * total.to(tl.float64))
    # What bins up to each hold, at least and at most; so does what is left of the total by those beyond.
    lower = counts * tl.where(by_count, 1, least_of_bin(number))
    upper = counts * tl.where(by_count, 1, least_of_bin(number - 1))
    at_least, at_most = tl.cumsum(lower, axis=0), tl.cumsum(upper, axis=0)
    left_least = total - (tl.sum(upper, axis=0) - at_most)
    left_most = total - (tl.sum(lower, axis=0) - at_least)
    at_least = tl.where(by_count, at_least, tl.maximum(at_least, left_least))
    at_most = tl.where(by_count, at_most, tl.minimum(at_most, left_most))
    last = tl.min(tl.where(at_least.to(tl.float64) >= goal, number, _BINS - 1), axis=0)
    first = tl.min(tl.where(at_most.to(tl.float64) >= goal, number, _BINS - 1), axis=0)
    low, high = edge_of_bin(last), edge_of_bin(first - 1)
    narrows = tl.sum(tl.where(number <= last, counts, 0), axis=0) > LISTED
    shift = last * 0
    beyond = tl.zeros([], tl.float64) + float("inf")
    if narrows:
        beyond = high.to(tl.float32, bitcast=True).to(tl.float64)
        while (high - low - 1) >> shift >= PARTS:
            shift += 1
        tl.store(masses + row * PARTS + tl.arange(0, PARTS), tl.zeros([PARTS], tl.int64))
    tl.store(ranges + _LEAST * rows + row, low.to(tl.float32, bitcast=True).to(tl.float64))
    tl.store(ranges + _BEYOND * rows + row, beyond)
    tl.store(ranges + _GOAL * rows + row, tl.where(narrows, goal, 0.0))
    tl.store(ranges + _SHIFT * rows + row, shift.to(tl.float64))
    tl.store(ranges + _LARGEST * rows + row, row_max(maxima, row, splits, SPLITS).to(tl.float64))
    tl.store(base + row, total * 0)
    tl.store(found + row, 0)
    tl.store(found + rows + row, 0)


@triton.jit
def narrow_range(
    logits, row_options, ranges, base, found, masses, vocabulary, stride,
    BLOCK: tl.constexpr, PARTS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Narrow the range of rows with too many candidates for the list to one of its parts. Grid: (splits, R).

    A row's last program finds the part. In: logits.
    In place: the first two rows of ranges; base, with a top-p alone the weights beyond the range; found's second
    row, programs that are done; masses, the tokens of each part with a top-k, else their weights.
    """
    split, row, splits, rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)
    _, filtered, scale, least, k, _ = _begin(row_options, vocabulary, row, rows, CHAINED)
    if filtered == 0:
        return
    goal = option(ranges, rows, row, _GOAL)
    low = option(ranges, rows, row, _LEAST).to(tl.float32)
    high = option(ranges, rows, row, _BEYOND).to(tl.float32)
    shift = option(ranges, rows, row, _SHIFT).to(tl.int32)
    largest = option(ranges, rows, row, _LARGEST).to(tl.float32)
    if goal == 0.0:
        return
    high_bits = high.to(tl.int32, bitcast=True)
    _, values = load_split(logits + row.to(tl.int64) * stride, split, vocabulary, BLOCK, True)
    weights = float_weights(values, largest, scale, least)
    amounts = tl.where(k > 0, (weights > 0.0).to(tl.int64), weights.to(tl.int64))
    # Floats above 0 are in the order of their bits.
    part = (high_bits - 1 - weights.to(tl.int32, bitcast=True)) >> shift
    within = (weights >= low) & (weights < high)
    tl.atomic_add(masses + row * PARTS + part, amounts, mask=within, sem="relaxed")
    tl.atomic_add(base + row, tl.sum(tl.where(weights >= high, amounts, 0), axis=0), sem="relaxed")
    # All that this program has added comes before what tells the others that it is done.
    tl.debug_barrier()
    done = tl.atomic_add(found + rows + row, 1, sem="acq_rel")
    if done == splits - 1:
        number = tl.arange(0, PARTS)
        # Others have added to them in the L2 cache.
        own = tl.load(masses + row * PARTS + number, cache_modifier=".cg")
        before = tl.load(base + row, cache_modifier=".cg")
        reached = before + tl.cumsum(own, axis=0)
        chosen = tl.min(tl.where(reached.to(tl.float64) >= goal, number, PARTS - 1), axis=0)
        certain = before + tl.sum(tl.where(number < chosen, own, 0), axis=0)
        low_bits = tl.maximum(high_bits - ((chosen + 1) << shift), low.to(tl.int32, bitcast=True))
        high_bits -= chosen << shift
        beyond = tl.where(k > 0, float("inf"), high_bits.to(tl.float32, bitcast=True))
        tl.store(ranges + _LEAST * rows + row, low_bits.to(tl.float32, bitcast=True).to(tl.float64))
        tl.store(ranges + _BEYOND * rows + row, beyond.to(tl.float64))
        tl.store(base + row, tl.where(k > 0, 0, certain))


@triton.jit
def list_candidates(
    logits, row_options, maxima, sums, ranges, found, listed, vocabulary, stride,
    BLOCK: tl.constexpr, LISTED: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """List the tokens of rows with filters among which the last that they keep is. Grid: (splits, R).

    In: logits, maxima, ranges.
    Out: the second half of sums, of each split the weights that certainly stay and are not listed; listed, the
    places of candidates, in no order; if there are more, some of them. In place: found's first row, candidates.
    """
    split, row, splits, rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)
    _, filtered, scale, least, _, _ = _begin(row_options, vocabulary, row, rows, CHAINED)
    if filtered == 0:
        return
    low = option(ranges, rows, row, _LEAST).to(tl.float32)
    high = option(ranges, rows, row, _BEYOND).to(tl.float32)
    largest = option(ranges, rows, row, _LARGEST).to(tl.float32)
    most = float_weights(tl.load(maxima + row * splits + split), largest, scale, 0.0)
    to = sums + (rows + row) * splits + split
    # A device's powers of two are off by 2^-22 at most, and need not grow with every logit.
    if most * 1.000001 < low:
        tl.store(to, tl.zeros([], tl.int64))
        return
    at, values = load_split(logits + row.to(tl.int64) * stride, split, vocabulary, BLOCK, True)
    weights = float_weights(values, largest, scale, least)
    above = tl.zeros([], tl.int64)
    if high < float("inf"):
        above = tl.sum(tl.where(weights >= high, weights, 0.0).to(tl.int64), axis=0)
    tl.store(to, above)
    chosen = (weights >= low) & (weights < high)
    entry = tl.atomic_add(found + row + tl.zeros([BLOCK], tl.int32), 1, mask=chosen, sem="relaxed")
    tl.store(
        listed + row.to(tl.int64) * LISTED + entry, places_of(values, at), mask=chosen & (entry < LISTED)
    )
