"""The weights that tokens are drawn by, and their order: functions for other kernels.

A weight is a token's probability in fixed point, an integer, so that no sum depends on its order. A place orders a
row's tokens as a stable sort by logits would: it is greater for greater logits, and of equal ones for lower ids.
"""

import triton
import triton.language as tl

from hiscore.kernels.gemv import launch_dependents, wait_for_predecessors
from hiscore.kernels.top_k import float_key

UNIT = tl.constexpr(4294967296.0)
# A place is a key of 32 bits, followed by an id counted from the last.
ID_BITS = tl.constexpr(21)
_LAST_ID = tl.constexpr((1 << 21) - 1)
BEYOND_PLACES = tl.constexpr(1 << 53)


@triton.jit
def begin_split(CHAINED: tl.constexpr):
    """Begin a kernel of the grid (splits, R), behind the one before it.

    Returns:
        This program's split and row, and how many there are of each.
    """
    launch_dependents(CHAINED)
    wait_for_predecessors(CHAINED)
    return tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)


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
    weights = tl.floor(share * UNIT + 0.5).to(tl.int64)
    return tl.where(weights.to(tl.float64) >= least.to(tl.float64) * UNIT, weights, 0)


@triton.jit
def load_split(row_logits, split, vocabulary, BLOCK: tl.constexpr):
    """Ids and logits of a split of a row; -inf beyond the vocabulary."""
    at = split * BLOCK + tl.arange(0, BLOCK)
    return at, tl.load(row_logits + at, mask=at < vocabulary, other=float("-inf"))


@triton.jit
def places_of(logits, ids):
    """Logits and ids -> int64, above 0, none twice."""
    return (float_key(logits).to(tl.int64) << ID_BITS) | (ids.to(tl.int64) ^ _LAST_ID)


@triton.jit
def logits_at(places):
    """The logits of places, but for the sign of a zero."""
    bits = ((places >> ID_BITS).to(tl.uint32) ^ 0x80000000).to(tl.int32, bitcast=True)
    return (bits ^ ((bits >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def ids_at(places):
    """The ids of places, int32."""
    return ((places & _LAST_ID) ^ _LAST_ID).to(tl.int32)


@triton.jit
def bin_of(weights):
    """int32, 0 for the greatest weights to 127: four for each power of two; 127 is a weight of 1 or 0."""
    quarter = (weights.to(tl.float64).to(tl.int64, bitcast=True) >> 50) - (1023 << 2)
    return tl.minimum(128 - quarter, 127).to(tl.int32)


@triton.jit
def least_of_bin(number):
    """The least weight of a bin, int64; of bin -1, more than any weight."""
    quarter = (128 - number).to(tl.int64)
    return (((quarter & 3) + 4) << (quarter >> 2)) >> 2
