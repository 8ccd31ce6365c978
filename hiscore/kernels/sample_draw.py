"""Draw a token from each row and feed it to its sequence; `decoding.worker.sampler.sample` is the same in PyTorch.

One program of a row puts what `hiscore.kernels.sample_candidates` has listed in order: what filters keep are the
tokens from some place on. A list that was too short is not read: then the place is searched for among all tokens.
"""

import triton
import triton.language as tl

from hiscore.kernels.fixed_point import (
    BEYOND_PLACES,
    fixed_point_weights,
    ids_at,
    load_split,
    logits_at,
    places_of,
    row_max,
)
from hiscore.kernels.gemv import launch_dependents, wait_for_predecessors
from hiscore.kernels.sampling_options import COUNTED, FED, UNIFORM, filters, option, weighing

_COUNTERS = tl.constexpr(4)


@triton.jit
def _last_place(
    row_logits, largest, scale, least, goal, vocabulary, splits,
    BY_COUNT: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """The greatest place from which on tokens reach a goal, by number or by weight: two bits at a time."""
    low = tl.zeros([], tl.int64)
    step = low + BEYOND_PLACES // 2
    while step > 0:
        one = tl.zeros([BLOCK], tl.int64)
        two = tl.zeros([BLOCK], tl.int64)
        three = tl.zeros([BLOCK], tl.int64)
        for split in range(0, splits):
            at, values = load_split(row_logits, split, vocabulary, BLOCK)
            places = places_of(values, at)
            amounts = (at < vocabulary).to(tl.int64)
            if not BY_COUNT:
                amounts = fixed_point_weights(values, largest, scale, least)
            one += tl.where(places >= low + step, amounts, 0)
            two += tl.where(places >= low + 2 * step, amounts, 0)
            three += tl.where(places >= low + 3 * step, amounts, 0)
        reached = (tl.sum(one, axis=0).to(tl.float64) >= goal).to(tl.int64)
        reached += (tl.sum(two, axis=0).to(tl.float64) >= goal).to(tl.int64)
        reached += (tl.sum(three, axis=0).to(tl.float64) >= goal).to(tl.int64)
        low += reached * step
        step = step >> 2
    return low


@triton.jit
def _sum_from(row_logits, largest, scale, least, place, kept, vocabulary, splits, BLOCK: tl.constexpr):
    """The weights of the tokens from a place on, of each split into kept [splits]; returns their sum."""
    total = tl.zeros([], tl.int64)
    for split in range(0, splits):
        at, values = load_split(row_logits, split, vocabulary, BLOCK)
        weights = fixed_point_weights(values, largest, scale, least)
        own = tl.sum(tl.where(places_of(values, at) >= place, weights, 0), axis=0)
        tl.store(kept + split, own)
        total += own
    return total


@triton.jit
def _keep_by_sorting(
    row_listed, largest, scale, least, k, p, total, certain, count, kept,
    BLOCK: tl.constexpr, LENGTH: tl.constexpr,
):  # fmt: skip
    """The last place of `_filtered` for a row whose candidates are all listed, LENGTH at most: they are sorted."""
    entry = tl.arange(0, LENGTH)
    places = tl.load(row_listed + entry, mask=entry < count, other=0)
    places = tl.sort(places, descending=True)
    there = entry < tl.where(k > 0, tl.minimum(k, count), count)
    weights = tl.where(there, fixed_point_weights(logits_at(places), largest, scale, least), 0)
    left = tl.where(k > 0, tl.sum(weights, axis=0), total)
    before = certain + tl.cumsum(weights, axis=0) - weights
    there = there & (before.to(tl.float64) < tl.where(p < 1.0, p * left.to(tl.float64), float("inf")))
    tl.atomic_add(kept + ids_at(places) // BLOCK, weights, mask=there, sem="relaxed")
    return tl.min(tl.where(there, places, BEYOND_PLACES), axis=0)


@triton.jit
def _filtered(
    row_logits, largest, scale, least, k, p, total, certain, count, row_listed, kept, vocabulary, splits,
    BLOCK: tl.constexpr, LISTED: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """Apply a row's filters: the last place that they keep; kept, int64 [splits], gets what is left."""
    last = tl.zeros([], tl.int64)
    if count > LISTED:
        left = total
        if k > 0:
            last = _last_place(row_logits, largest, scale, least, k, vocabulary, splits, True, BLOCK)
            left = _sum_from(row_logits, largest, scale, least, last, kept, vocabulary, splits, BLOCK)
        if p < 1.0:
            goal = p * left.to(tl.float64)
            last = _last_place(row_logits, largest, scale, least, goal, vocabulary, splits, False, BLOCK)
            _sum_from(row_logits, largest, scale, least, last, kept, vocabulary, splits, BLOCK)
    elif count > SHORT:
        last = _keep_by_sorting(
            row_listed, largest, scale, least, k, p, total, certain, count, kept, BLOCK, LISTED
        )
    else:
        last = _keep_by_sorting(
            row_listed, largest, scale, least, k, p, total, certain, count, kept, BLOCK, SHORT
        )
    return last


@triton.jit
def draw_tokens(
    logits, row_options, maxima, best, sums, base, found, listed, out, input_ids, table, hits, misses, mass,
    vocabulary, stride, splits,
    BLOCK: tl.constexpr, SPLITS: tl.constexpr, LISTED: tl.constexpr, SHORT: tl.constexpr,
    FEEDS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Draw; under FEEDS also do what `step_runner.feed` does, and count tokens. Grid: (R,).

    In: logits, maxima, best, base, found, listed from the kernels before, see `sample_candidates`.
    Out: out int64 [R], an arbitrary id for a row that cannot be sampled; under FEEDS `StepOutputs.readback`.
    In place: sums; input_ids int32, see `StepRunner`; table int32 [max_sequences, vocabulary], see `TokenCounts`;
    hits, misses int64 [1]; mass int64 [2], bits of float64.
    """
    row, rows = tl.program_id(0), tl.num_programs(0)
    launch_dependents(CHAINED)
    temperature, scale, least = weighing(row_options, rows, row)
    k, p, filtered = filters(row_options, rows, row, vocabulary)
    uniform = option(row_options, rows, row, UNIFORM)
    wait_for_predecessors(CHAINED)
    each = tl.arange(0, SPLITS)
    row_logits = logits + row.to(tl.int64) * stride
    largest = row_max(maxima, row, splits, SPLITS)
    if temperature == 0.0:
        own = tl.load(maxima + row * splits + each, mask=each < splits, other=float("-inf"))
        ids = tl.load(best + row * splits + each, mask=each < splits, other=vocabulary - 1)
        token = tl.min(tl.where(own == largest, ids, vocabulary - 1), axis=0)
    else:
        held = sums + row * splits
        last = tl.zeros([], tl.int64)
        if filtered:
            total = tl.sum(tl.load(held + each, mask=each < splits, other=0), axis=0)
            held += rows * splits
            last = _filtered(
                row_logits, largest, scale, least, k, p, total, tl.load(base + row), tl.load(found + row),
                listed + row.to(tl.int64) * LISTED, held, vocabulary, splits, BLOCK, LISTED, SHORT,
            )  # fmt: skip
            tl.debug_barrier()
        # What this program has added is in the L2 cache.
        of_split = tl.load(held + each, mask=each < splits, other=0, cache_modifier=".cg")
        until = tl.cumsum(of_split, axis=0)
        aim = (uniform * tl.sum(of_split, axis=0).to(tl.float64)).to(tl.int64)
        split = tl.minimum(tl.sum(((until <= aim) & (each < splits)).to(tl.int32), axis=0), splits - 1)
        aim -= tl.sum(tl.where(each < split, of_split, 0), axis=0)
        at, values = load_split(row_logits, split, vocabulary, BLOCK)
        weights = fixed_point_weights(values, largest, scale, least)
        weights = tl.where(places_of(values, at) >= last, weights, 0)
        # The first that passes the aim; should a rounded exp have misplaced one, then the last that is kept.
        passing = tl.min(tl.where(tl.cumsum(weights, axis=0) > aim, at, vocabulary), axis=0)
        token = tl.minimum(passing, tl.max(tl.where(weights > 0, at, 0), axis=0))
    if FEEDS:
        tl.store(out + _COUNTERS + row, tl.where(largest - largest == 0.0, token, -1).to(tl.int64))
        fed = option(row_options, rows, row, FED).to(tl.int64)
        if fed >= 0:
            tl.store(input_ids + fed, token)
        counted = option(row_options, rows, row, COUNTED).to(tl.int64)
        if counted >= 0:
            entry = table + counted * vocabulary + token
            tl.store(entry, tl.load(entry) + 1)
        if row == 0:
            tl.store(out, tl.load(hits))
            tl.store(out + 1, tl.load(misses))
            tl.store(out + 2, tl.load(mass))
            tl.store(out + 3, tl.load(mass + 1))
    else:
        tl.store(out + row, token.to(tl.int64))
