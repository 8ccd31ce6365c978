"""Draw a token from each row of logits without sorting; `hiscore.decoding.worker.sampler.sample` sorts.

A row is cut into splits, so that a few rows use the whole device. Its candidates are the tokens whose weight
reaches a power of two that certainly leaves enough for top-k and top-p: few, where either is in use. They are
collected in the order of ids, and one program finds the thresholds among them. Weights are integers, so no sum
depends on its order.
"""

import triton
import triton.language as tl

from hiscore.kernels.top_k import float_key, kth_largest

# Weights are at most 2^32; a bin for each power of two below, and one for nothing.
_BINS = tl.constexpr(64)
_UNIT = tl.constexpr(4294967296.0)


@triton.jit
def _row_max(maxima, row, splits, SPLITS: tl.constexpr):
    """The largest logit of a row, NaN if there is one."""
    at = tl.arange(0, SPLITS)
    values = tl.load(maxima + row * splits + at, mask=at < splits, other=float("-inf"))
    largest = tl.max(values, axis=0)
    return tl.where(tl.sum((values != values).to(tl.int32), axis=0) > 0, float("nan"), largest)


@triton.jit
def _weights(logits, largest, temperature, least):
    """Fixed-point weights, int64; 0 for less than the share `least`, -inf, and a row that cannot be sampled."""
    share = tl.exp((logits - largest) / tl.maximum(temperature, 1.17549435e-38))
    share = tl.where((share >= 0.0) & (share <= 1.0), share, 0.0)
    weights = tl.floor(share * _UNIT + 0.5).to(tl.int64)
    return tl.where(weights.to(tl.float64) >= least.to(tl.float64) * _UNIT, weights, 0)


@triton.jit
def _bin(weights):
    """How many powers of two below the greatest, int32: 0 to 32; 63 for a weight of 0."""
    exponent = (weights.to(tl.float64).to(tl.int64, bitcast=True) >> 52) - 1023
    return tl.where(weights > 0, 32 - exponent, _BINS - 1).to(tl.int32)


@triton.jit
def row_maxima(logits, maxima, vocabulary, stride, BLOCK: tl.constexpr):
    """The largest logit of each split. Grid: (R, splits).

    Args:
        logits: float32 [R, stride].
        maxima: Out: float32 [R, splits]; NaN if one is.
    """
    row, split = tl.program_id(0), tl.program_id(1)
    at = split * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < vocabulary, other=float("-inf"))
    largest = tl.max(values, axis=0)
    broken = tl.sum((values != values).to(tl.int32), axis=0) > 0
    tl.store(maxima + row * tl.num_programs(1) + split, tl.where(broken, float("nan"), largest))


@triton.jit
def count_weights(
    logits, maxima, temperature, min_p, sums, counts, vocabulary, stride, BLOCK: tl.constexpr, SPLITS: tl.constexpr
):  # fmt: skip
    """Sum and count the weights of each split. Grid: (R, splits).

    Args:
        logits: float32 [R, stride].
        maxima: float32 [R, splits].
        temperature, min_p: float32 [R].
        sums: Out: int64 [R, splits].
        counts: Out: int32 [R, splits, 64]: by the power of two.
    """
    row, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    heat = tl.load(temperature + row)
    if heat == 0.0:
        return
    at = split * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < vocabulary, other=float("-inf"))
    weights = _weights(values, _row_max(maxima, row, splits, SPLITS), heat, tl.load(min_p + row))
    place = (row * splits + split).to(tl.int64)
    tl.store(sums + place, tl.sum(weights, axis=0))
    tl.store(counts + place * _BINS + tl.arange(0, _BINS), tl.histogram(_bin(weights), _BINS))


@triton.jit
def collect_candidates(
    logits, maxima, temperature, top_k, top_p, min_p, sums, counts, keys, ids, found,
    vocabulary, stride, BLOCK: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Collect the tokens that filters may leave, in the order of ids. Grid: (R, splits).

    Args:
        logits: float32 [R, stride].
        maxima: float32 [R, splits].
        temperature, top_k, top_p, min_p: [R].
        sums: int64 [R, splits].
        counts: int32 [R, splits, 64].
        keys: Out: uint32 [R, vocabulary]: in the order of logits.
        ids: Out: int32 [R, vocabulary].
        found: Out: int32 [R, splits]: how many candidates lie in the splits up to this one.
    """
    row, split, splits = tl.program_id(0), tl.program_id(1), tl.num_programs(1)
    heat, k, least = tl.load(temperature + row), tl.load(top_k + row), tl.load(min_p + row)
    p = tl.load(top_p + row).to(tl.float64)
    if (heat == 0.0) | ((k == 0) & (p >= 1.0)):
        return
    each = tl.arange(0, SPLITS)
    power = tl.arange(0, _BINS)
    there = (each < splits)[:, None]
    by_split = tl.load(
        counts + ((row * splits + each[:, None]).to(tl.int64) * _BINS + power[None, :]), mask=there, other=0
    )
    total = tl.sum(tl.load(sums + row * splits + each, mask=each < splits, other=0), axis=0)
    # How many weights reach each power of two, and what they hold at least.
    by_power = tl.where(power <= 32, tl.sum(by_split, axis=0), 0)
    reaching = tl.cumsum(by_power, axis=0)
    lower = tl.where(power <= 32, tl.cast(1, tl.int64) << (32 - tl.minimum(power, 32)).to(tl.int64), 0)
    holding = tl.cumsum(by_power.to(tl.int64) * lower, axis=0).to(tl.float64)
    # Top-p is a share of what top-k leaves, so with a top-k nothing that it leaves may be missing.
    goal = tl.where(k > 0, float("inf"), p * total.to(tl.float64))
    enough = (reaching >= tl.where(k > 0, k, 2147483647)) | (holding >= goal)
    cut = tl.minimum(tl.min(tl.where(enough, power, _BINS), axis=0), 32)
    floor = tl.cast(1, tl.int64) << (32 - cut).to(tl.int64)

    at = split * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(logits + row.to(tl.int64) * stride + at, mask=at < vocabulary, other=float("-inf"))
    weights = _weights(values, _row_max(maxima, row, splits, SPLITS), heat, least)
    chosen = weights >= floor
    before = tl.sum(
        tl.sum(tl.where((power <= cut)[None, :] & (each < split)[:, None], by_split, 0), axis=1), axis=0
    )
    rank = before + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    to = row.to(tl.int64) * vocabulary + rank
    tl.store(keys + to, float_key(values), mask=chosen)
    tl.store(ids + to, at, mask=chosen)
    tl.store(found + row * splits + split, before + tl.sum(chosen.to(tl.int32), axis=0))


@triton.jit
def _sum_from(keys, ids, row_logits, count, threshold, largest, heat, least, BLOCK: tl.constexpr):
    """The weights of candidates whose keys reach a threshold."""
    total = tl.zeros([BLOCK], tl.int64)
    for begin in range(0, count, BLOCK):
        entry = begin + tl.arange(0, BLOCK)
        key = tl.load(keys + entry, mask=entry < count, other=0)
        token = tl.load(ids + entry, mask=entry < count, other=0)
        reach = (entry < count) & (key >= threshold)
        values = tl.load(row_logits + token, mask=reach, other=float("-inf"))
        total += tl.where(reach, _weights(values, largest, heat, least), 0)
    return tl.sum(total, axis=0)


@triton.jit
def draw_tokens(
    logits, maxima, temperature, top_k, top_p, min_p, uniforms, sums, keys, ids, found, out,
    vocabulary, stride, splits, BLOCK: tl.constexpr, SPLITS: tl.constexpr, STEP: tl.constexpr,
):  # fmt: skip
    """Find the thresholds among the candidates and draw. Grid: (R,).

    Args:
        logits: float32 [R, stride].
        maxima, sums, keys, ids, found: As above.
        temperature, top_k, top_p, min_p, uniforms: [R].
        out: int64 [R]; an arbitrary id for a row that cannot be sampled.
    """
    row = tl.program_id(0)
    heat, k, least = tl.load(temperature + row), tl.load(top_k + row), tl.load(min_p + row)
    p = tl.load(top_p + row).to(tl.float64)
    row_logits = logits + row.to(tl.int64) * stride
    largest = _row_max(maxima, row, splits, SPLITS)
    each = tl.arange(0, SPLITS)
    if heat == 0.0:
        own = tl.load(maxima + row * splits + each, mask=each < splits, other=float("-inf"))
        first = tl.min(tl.where(own == largest, each, splits - 1), axis=0)
        at = first * BLOCK + tl.arange(0, BLOCK)
        values = tl.load(row_logits + at, mask=at < vocabulary, other=float("-inf"))
        tl.store(out + row, tl.min(tl.where(values == largest, at, vocabulary - 1), axis=0).to(tl.int64))
    elif (k == 0) & (p >= 1.0):
        of_split = tl.load(sums + row * splits + each, mask=each < splits, other=0)
        until = tl.cumsum(of_split, axis=0)
        rest = (tl.load(uniforms + row) * tl.sum(of_split, axis=0).to(tl.float64)).to(tl.int64)
        split = tl.sum(((until <= rest) & (each < splits)).to(tl.int32), axis=0)
        split = tl.minimum(split, splits - 1)
        rest -= tl.sum(tl.where(each < split, of_split, 0), axis=0)
        places = split * BLOCK + tl.arange(0, BLOCK)
        shown = tl.load(row_logits + places, mask=places < vocabulary, other=float("-inf"))
        passed = tl.cumsum(_weights(shown, largest, heat, least), axis=0) <= rest
        drawn = split * BLOCK + tl.sum(passed.to(tl.int32), axis=0)
        tl.store(out + row, tl.minimum(drawn, vocabulary - 1).to(tl.int64))
    else:
        count = tl.load(found + row * splits + splits - 1)
        own_keys = keys + row.to(tl.int64) * vocabulary
        own_ids = ids + row.to(tl.int64) * vocabulary
        most = float_key(largest)
        low = tl.zeros([], tl.uint32) + 1
        allowed = count + 0
        if (k > 0) & (k < count):
            low, allowed = kth_largest(own_keys, count, k, most, STEP)
        # What top-k leaves: of equal logits at the limit so many as it allows.
        above = _sum_from(own_keys, own_ids, row_logits, count, low + 1, largest, heat, least, STEP)
        at_low = _sum_from(own_keys, own_ids, row_logits, count, low, largest, heat, least, STEP) - above
        equals = count * 0
        for begin in range(0, count, STEP):
            entry = begin + tl.arange(0, STEP)
            key = tl.load(own_keys + entry, mask=entry < count, other=0)
            equals += tl.sum(((entry < count) & (key == low)).to(tl.int32), axis=0)
        kept = tl.minimum(equals, allowed)
        total = above + tl.where(equals > 0, at_low // tl.maximum(equals, 1) * kept, 0)
        if k == 0:
            # Those that are no candidates count too.
            total = tl.sum(tl.load(sums + row * splits + each, mask=each < splits, other=0), axis=0)
        goal = p * total.to(tl.float64)
        # The greatest threshold whose tokens reach the goal of top-p: two bits at a time.
        limit = tl.zeros([], tl.uint32)
        if p < 1.0:
            step = limit + (1 << 30)
            while step > most:
                step = step >> 2
            while step > 0:
                first_mass = tl.zeros([STEP], tl.int64)
                second_mass = tl.zeros([STEP], tl.int64)
                third_mass = tl.zeros([STEP], tl.int64)
                for begin in range(0, count, STEP):
                    entry = begin + tl.arange(0, STEP)
                    key = tl.load(own_keys + entry, mask=entry < count, other=0)
                    name = tl.load(own_ids + entry, mask=entry < count, other=0)
                    there = (entry < count) & (key >= limit + step)
                    values = tl.load(row_logits + name, mask=there, other=float("-inf"))
                    weights = tl.where(there, _weights(values, largest, heat, least), 0)
                    first_mass += weights
                    second_mass += tl.where(key >= limit + step + step, weights, 0)
                    third_mass += tl.where(key >= limit + step + step + step, weights, 0)
                mass = tl.where(limit + step <= low, total, tl.sum(first_mass, axis=0))
                reached = (mass.to(tl.float64) >= goal).to(tl.uint32)
                mass = tl.where(limit + step + step <= low, total, tl.sum(second_mass, axis=0))
                reached += (mass.to(tl.float64) >= goal).to(tl.uint32)
                mass = tl.where(limit + step + step + step <= low, total, tl.sum(third_mass, axis=0))
                reached += (mass.to(tl.float64) >= goal).to(tl.uint32)
                limit += reached * step
                step = step >> 2
        else:
            goal = goal + float("inf")
        limit = tl.maximum(limit, low)
        most_equal = tl.where(limit > low, count, allowed)
        ahead = _sum_from(own_keys, own_ids, row_logits, count, limit + 1, largest, heat, least, STEP)
        # Draw among what is left, in the order of ids; first the sum, then the token.
        last = count * 0
        held = tl.zeros([], tl.int64)
        aim = tl.zeros([], tl.int64)
        token = last - 1
        for turn in range(0, 2):
            ties = count * 0
            running = tl.zeros([], tl.int64)
            for begin in range(0, count, STEP):
                entry = begin + tl.arange(0, STEP)
                key = tl.load(own_keys + entry, mask=entry < count, other=0)
                name = tl.load(own_ids + entry, mask=entry < count, other=0)
                there = (entry < count) & (key >= limit)
                values = tl.load(row_logits + name, mask=there, other=float("-inf"))
                weights = tl.where(there, _weights(values, largest, heat, least), 0)
                equal = there & (key == limit)
                seen = ties + tl.cumsum(equal.to(tl.int32), axis=0)
                early = ahead + (seen - 1).to(tl.int64) * weights
                within = ((early.to(tl.float64) < goal) | (early == 0)) & (seen <= most_equal)
                weights = tl.where(equal & (within == 0), 0, weights)
                ties += tl.sum(equal.to(tl.int32), axis=0)
                up_to = running + tl.cumsum(weights, axis=0)
                hit = (turn == 1) & (token < 0) & (tl.sum((up_to > aim).to(tl.int32), axis=0) > 0)
                first = tl.min(tl.where((up_to > aim) & (weights > 0), name, vocabulary - 1), axis=0)
                token = tl.where(hit, first, token)
                running += tl.sum(weights, axis=0)
            held = running
            aim = tl.where(turn == 0, (tl.load(uniforms + row) * held.to(tl.float64)).to(tl.int64), aim)
        tl.store(out + row, tl.where(token < 0, vocabulary - 1, token).to(tl.int64))
