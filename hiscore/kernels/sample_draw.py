"""Draw a token from each row's candidates; `hiscore.decoding.worker.sampler.sample` is the same with a sort.

One program of a row finds the thresholds of top-k and top-p among the candidates that
`hiscore.kernels.sample_candidates` has collected, and draws in the order of ids.
"""

import triton
import triton.language as tl

from hiscore.kernels.sample_candidates import fixed_point_weights, row_max
from hiscore.kernels.top_k import float_key, kth_largest


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
        total += tl.where(reach, fixed_point_weights(values, largest, heat, least), 0)
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
    largest = row_max(maxima, row, splits, SPLITS)
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
        passed = tl.cumsum(fixed_point_weights(shown, largest, heat, least), axis=0) <= rest
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
                    weights = tl.where(there, fixed_point_weights(values, largest, heat, least), 0)
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
                weights = tl.where(there, fixed_point_weights(values, largest, heat, least), 0)
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
