"""Find the tokens that a draw may take, without sorting; `hiscore.kernels.sample_draw` draws one of them.

A row is cut into splits, so that a few rows use the whole device. Its candidates are the tokens whose weight
reaches a power of two that certainly leaves enough for top-k and top-p: few, where either is in use. They are
collected in the order of ids. Weights are integers, so no sum depends on its order.
"""

import triton
import triton.language as tl

from hiscore.kernels.top_k import float_key

# Weights are at most 2^32; a bin for each power of two below, and one for nothing.
_BINS = tl.constexpr(64)
_UNIT = tl.constexpr(4294967296.0)


@triton.jit
def row_max(maxima, row, splits, SPLITS: tl.constexpr):
    """The largest logit of a row, NaN if there is one."""
    at = tl.arange(0, SPLITS)
    values = tl.load(maxima + row * splits + at, mask=at < splits, other=float("-inf"))
    largest = tl.max(values, axis=0)
    return tl.where(tl.sum((values != values).to(tl.int32), axis=0) > 0, float("nan"), largest)


@triton.jit
def fixed_point_weights(logits, largest, temperature, least):
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
    weights = fixed_point_weights(values, row_max(maxima, row, splits, SPLITS), heat, tl.load(min_p + row))
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
    weights = fixed_point_weights(values, row_max(maxima, row, splits, SPLITS), heat, least)
    chosen = weights >= floor
    before = tl.sum(
        tl.sum(tl.where((power <= cut)[None, :] & (each < split)[:, None], by_split, 0), axis=1), axis=0
    )
    rank = before + tl.cumsum(chosen.to(tl.int32), axis=0) - 1
    to = row.to(tl.int64) * vocabulary + rank
    tl.store(keys + to, float_key(values), mask=chosen)
    tl.store(ids + to, at, mask=chosen)
    tl.store(found + row * splits + split, before + tl.sum(chosen.to(tl.int32), axis=0))
