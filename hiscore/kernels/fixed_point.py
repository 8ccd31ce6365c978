"""The weights that tokens are drawn by, and their order: functions for other kernels.

A weight is a token's probability in fixed point, an integer, so that no sum depends on its order. Before its
fraction is cut off it is a float32: that reaches a whole number where the weight does, and is cheaper to compare.
A place orders a row's tokens as a stable sort by logits would: it is greater for greater logits, and of equal ones
for lower ids.
"""

import triton
import triton.language as tl

from hiscore.kernels.sampling_options import UNIT
from hiscore.kernels.top_k import float_key

# A place is a key of 32 bits, followed by an id counted from the last.
ID_BITS = tl.constexpr(21)
_LAST_ID = tl.constexpr((1 << 21) - 1)
BEYOND_PLACES = tl.constexpr(1 << 53)


@triton.jit
def row_max(maxima, row, splits, SPLITS: tl.constexpr):
    """The largest logit of a row, infinity if one is NaN."""
    at = tl.arange(0, SPLITS)
    return tl.max(tl.load(maxima + row * splits + at, mask=at < splits, other=float("-inf")), axis=0)


@triton.jit
def float_weights(logits, largest, scale, least):
    """Weights with their fractions, float32; 0 for less than `least`, -inf, and a row that cannot be sampled."""
    weights = tl.exp2((logits - largest) * scale) * UNIT + 0.5
    return tl.where(weights >= least, weights, 0.0)


@triton.jit
def fixed_point_weights(logits, largest, scale, least):
    """Weights, int64; 0 where `float_weights` are."""
    return float_weights(logits, largest, scale, least).to(tl.int64)


@triton.jit
def load_split(row_logits, split, vocabulary, BLOCK: tl.constexpr, SCATTERS: tl.constexpr = False):
    """Ids and logits of a split of a row; -inf beyond the vocabulary. SCATTERS: for results that are scattered."""
    at = split * BLOCK + tl.arange(0, BLOCK)
    if SCATTERS:
        # Four of a thread would be loaded at once, and would change threads before they are scattered one by one.
        at = tl.max_contiguous(at, 1)
    return at, tl.load(row_logits + at, mask=at < vocabulary, other=float("-inf"))


@triton.jit
def places_of(logits, ids):
    """int64 places of logits and ids: above 0, none twice."""
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
    """Float weights of at least 1 -> int32, 0 for the greatest to 255: eight for each power of two."""
    eighth = (weights.to(tl.int32, bitcast=True) >> 20) - (127 << 3)
    return tl.minimum(256 - eighth, 255)


@triton.jit
def edge_of_bin(number):
    """The least float weight of a bin, as the bits of a float32; of bin -1, more than any."""
    return (256 - tl.where(number == 255, 256, number) + (127 << 3)) << 20


@triton.jit
def least_of_bin(number):
    """The least weight of a bin, int64; of bin -1, more than any weight."""
    eighth = (256 - number).to(tl.int64)
    return (((eighth & 7) + 8) << (eighth >> 3)) >> 3
