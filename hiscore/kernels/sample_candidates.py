"""Find the tokens among which filters end, without sorting; `hiscore.kernels.sample_draw` draws one.

A row is cut into splits, so that a few rows use the whole device. Candidates are the tokens whose weight reaches
the bin that certainly leaves enough for top-k or top-p: few, where logits are far apart. Where they are not,
thresholds within that bin narrow them down. Weights are integers, so no sum depends on its order.
"""

import triton
import triton.language as tl

from hiscore.kernels.fixed_point import (
    begin_split,
    bin_of,
    fixed_point_weights,
    least_of_bin,
    load_split,
    places_of,
    row_max,
)
from hiscore.kernels.sampling_options import filters, weighing

BINS = 128
"""By weight: see `fixed_point.bin_of`."""
_BINS = tl.constexpr(BINS)
# Below, bins are not a quarter of a power of two: weights of a few units.
_LAST_WHOLE_BIN = tl.constexpr(119)


@triton.jit
def count_weights(
    logits, row_options, maxima, sums, bins, vocabulary, stride,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Sum the weights of each split, and count those of rows with filters by bin. Grid: (splits, R).

    Args:
        logits: float32 [R, stride].
        row_options: See `sampling_options`.
        maxima: float32 [R, splits].
        sums: Out: int64 [R, splits].
        bins: Added to: int32 [R, 128].
    """
    split, row, splits, rows = begin_split(CHAINED)
    temperature, least = weighing(row_options, rows, row)
    if temperature == 0.0:
        return
    _, values = load_split(logits + row.to(tl.int64) * stride, split, vocabulary, BLOCK)
    weights = fixed_point_weights(values, row_max(maxima, row, splits, SPLITS), temperature, least)
    tl.store(sums + row * splits + split, tl.sum(weights, axis=0))
    _, _, filtered = filters(row_options, rows, row, vocabulary)
    if filtered:
        counts = tl.histogram(bin_of(weights), _BINS)
        number = tl.arange(0, _BINS)
        tl.atomic_add(bins + row * _BINS + number, counts, mask=counts > 0, sem="relaxed")


@triton.jit
def _range(bins, sums, row, splits, vocabulary, k, p, SPLITS: tl.constexpr, LISTED: tl.constexpr):
    """Where the last token that filters keep lies.

    Returns:
        The least weight that it may have, more than it can have, whether so many weights reach the least that
        thresholds between both are to narrow them down, and the goal: how many tokens, or with k = 0 what mass.
    """
    each = tl.arange(0, SPLITS)
    number = tl.arange(0, _BINS)
    total = tl.sum(tl.load(sums + row * splits + each, mask=each < splits, other=0), axis=0)
    # The last bin also counts what has no weight.
    counts = tl.where(number < _BINS - 1, tl.load(bins + row * _BINS + number), 0)
    goal = tl.where(k > 0, k.to(tl.float64), p * total.to(tl.float64))
    by_count = k > 0
    # What bins up to each hold, at least and at most.
    lower = tl.where(by_count, counts.to(tl.int64), counts * least_of_bin(number))
    upper = tl.where(by_count, counts.to(tl.int64), counts * least_of_bin(number - 1))
    at_least, at_most = tl.cumsum(lower, axis=0), tl.cumsum(upper, axis=0)
    # So does what is left of the total by those beyond, where the last holds less than the vocabulary.
    left_least = total - (tl.sum(upper, axis=0) - at_most) - vocabulary
    left_most = total - (tl.sum(lower, axis=0) - at_least)
    at_least = tl.where(by_count, at_least, tl.maximum(at_least, left_least))
    at_most = tl.where(by_count, at_most, tl.minimum(at_most, left_most))
    enough = at_least.to(tl.float64) >= goal
    maybe = at_most.to(tl.float64) >= goal
    last = tl.min(tl.where(enough, number, _BINS - 1), axis=0)
    first = tl.min(tl.where(maybe, number, _BINS - 1), axis=0)
    within = tl.sum(tl.where(number <= last, counts, 0), axis=0)
    narrows = (within > LISTED) & (last <= _LAST_WHOLE_BIN)
    return least_of_bin(last), least_of_bin(first - 1), narrows, goal


@triton.jit
def _threshold(low, high, number, THRESHOLDS: tl.constexpr):
    """The thresholds between low (number 0) and high (number THRESHOLDS)."""
    return low + (high - low) * number // THRESHOLDS


@triton.jit
def weigh_thresholds(
    logits, row_options, maxima, sums, bins, masses, vocabulary, stride,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, LISTED: tl.constexpr, THRESHOLDS: tl.constexpr, STEP: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """What reaches each threshold, of rows with too many candidates for the list. Grid: (splits, R).

    Args:
        logits: float32 [R, stride].
        row_options: See `sampling_options`.
        maxima, sums, bins: As `count_weights` left them.
        masses: Added to: int64 [R, THRESHOLDS]: with a top-k how many tokens, else their weights.
    """
    split, row, splits, rows = begin_split(CHAINED)
    temperature, least = weighing(row_options, rows, row)
    k, p, filtered = filters(row_options, rows, row, vocabulary)
    if (temperature == 0.0) | (filtered == 0):
        return
    low, high, narrows, _ = _range(bins, sums, row, splits, vocabulary, k, p, SPLITS, LISTED)
    if narrows == 0:
        return
    number = tl.arange(0, THRESHOLDS)
    thresholds = _threshold(low, high, (number + 1).to(tl.int64), THRESHOLDS)[:, None]
    largest = row_max(maxima, row, splits, SPLITS)
    reaching = tl.zeros([THRESHOLDS, STEP], tl.int64)
    for begin in range(0, BLOCK, STEP):
        at = split * BLOCK + begin + tl.arange(0, STEP)
        inside = at < vocabulary
        values = tl.load(logits + row.to(tl.int64) * stride + at, mask=inside, other=float("-inf"))
        weights = fixed_point_weights(values, largest, temperature, least)
        amounts = tl.where(k > 0, (weights > 0).to(tl.int64), weights)
        reaching += tl.where(weights[None, :] >= thresholds, amounts[None, :], 0)
    tl.atomic_add(masses + row * THRESHOLDS + number, tl.sum(reaching, axis=1), sem="relaxed")


@triton.jit
def list_candidates(
    logits, row_options, maxima, sums, bins, masses, base, found, listed, vocabulary, stride,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, LISTED: tl.constexpr, THRESHOLDS: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    """List the tokens of rows with filters among which the last that they keep is. Grid: (splits, R).

    Args:
        logits: float32 [R, stride].
        row_options: See `sampling_options`.
        maxima, bins, masses: As above.
        sums: int64 [2, R, splits]: as above; out: what certainly stays, of each split, and is not listed.
        base: Out: int64 [R]: its sum.
        found: Added to: int32 [R]: how many candidates there are.
        listed: Out: int64 [R, LISTED]: their places, in no order; if there are more, some of them.
    """
    split, row, splits, rows = begin_split(CHAINED)
    temperature, least = weighing(row_options, rows, row)
    k, p, filtered = filters(row_options, rows, row, vocabulary)
    if (temperature == 0.0) | (filtered == 0):
        return
    at, values = load_split(logits + row.to(tl.int64) * stride, split, vocabulary, BLOCK)
    weights = fixed_point_weights(values, row_max(maxima, row, splits, SPLITS), temperature, least)
    low, high, narrows, goal = _range(bins, sums, row, splits, vocabulary, k, p, SPLITS, LISTED)
    floor, ceiling, certain, above = low, low * 0 + (1 << 33), low * 0, low * 0
    if narrows:
        number = tl.arange(0, THRESHOLDS)
        reaching = tl.load(masses + row * THRESHOLDS + number)
        enough = tl.sum((reaching.to(tl.float64) >= goal).to(tl.int32), axis=0)
        floor = _threshold(low, high, enough.to(tl.int64), THRESHOLDS)
        if k == 0:
            ceiling = _threshold(low, high, (enough + 1).to(tl.int64), THRESHOLDS)
            certain = tl.sum(tl.where(number == enough, reaching, 0), axis=0)
            above = tl.sum(tl.where(weights >= ceiling, weights, 0), axis=0)
    if split == 0:
        tl.store(base + row, certain)
    tl.store(sums + (rows + row) * splits + split, above)
    chosen = (weights >= floor) & (weights < ceiling)
    count = tl.sum(chosen.to(tl.int32), axis=0)
    if count > 0:
        to = tl.atomic_add(found + row, count, sem="relaxed") + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
        tl.store(listed + row.to(tl.int64) * LISTED + to, places_of(values, at), mask=chosen & (to < LISTED))
