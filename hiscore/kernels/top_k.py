"""The k largest of many numbers without sorting: functions for other kernels (radix select).

Numbers are compared as uint32 keys of the same order. The k-th largest is found two bits at a time, from the
highest; each pass counts the keys that reach each of three thresholds. Selected entries come out in order, and
among equal keys the lower entry is selected.
"""

import triton
import triton.language as tl

# Above every key of a float.
ALWAYS = tl.constexpr(0xFFFFFFFF)
_COUNT_BITS = tl.constexpr(21)
_COUNT_MASK = tl.constexpr((1 << 21) - 1)


@triton.jit
def float_key(value):
    """uint32 keys of float32 values in their order, below ALWAYS; zeros are equal, NaN is next to infinity."""
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits == -2147483648, 0, bits)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.minimum(bits.to(tl.uint32, bitcast=True) ^ 0x80000000, ALWAYS - 1)


@triton.jit
def kth_largest(keys, count, k, most, BLOCK: tl.constexpr):
    """Find the k-th largest of keys, uint32 [count], none above `most`; 1 <= k <= count < 2^21.

    The result is a uint32 threshold and the number of keys equal to it that are selected. A search that ends early
    returns less than the k-th largest, but more than the next one.
    """
    low = tl.zeros([], tl.uint32)
    step = low + (1 << 30)
    # Skip bits that no key has.
    while step > most:
        step = step >> 2
    # Keys that reach `low`, and keys beyond the range that is left: reaching >= k > beyond.
    reaching = count + 0
    beyond = count * 0
    while (step > 0) & (reaching != k):
        packed = tl.zeros([BLOCK], tl.int64)
        for begin in range(0, count, BLOCK):
            entry = begin + tl.arange(0, BLOCK)
            # 0 reaches no threshold.
            key = tl.load(keys + entry, mask=entry < count, other=0)
            packed += (key >= low + step).to(tl.int64)
            packed += (key >= low + step + step).to(tl.int64) << _COUNT_BITS
            packed += (key >= low + step + step + step).to(tl.int64) << (2 * _COUNT_BITS)
        counts = tl.sum(packed, axis=0)
        one = (counts & _COUNT_MASK).to(tl.int32)
        two = ((counts >> _COUNT_BITS) & _COUNT_MASK).to(tl.int32)
        three = (counts >> (2 * _COUNT_BITS)).to(tl.int32)
        beyond = tl.where(three >= k, beyond, tl.where(two >= k, three, tl.where(one >= k, two, one)))
        reaching = tl.where(three >= k, three, tl.where(two >= k, two, tl.where(one >= k, one, reaching)))
        low += tl.where(three >= k, 3, tl.where(two >= k, 2, tl.where(one >= k, 1, 0))).to(tl.uint32) * step
        step = step >> 2
    return low, k - beyond


@triton.jit
def select(key, there, low, allowed, ties, taken):
    """Select from one block of entries after the search.

    key is uint32 [BLOCK], there bool [BLOCK] (entries that exist), low and allowed are from `kth_largest`, ties
    and taken from the block before, 0 at first. The results are bool [BLOCK], selected; int32 [BLOCK], each one's
    rank; ties and taken for the next block.
    """
    equal = there & (key == low)
    seen = tl.cumsum(equal.to(tl.int32), axis=0)
    selected = there & ((key > low) | (equal & (ties + seen <= allowed)))
    up_to = tl.cumsum(selected.to(tl.int32), axis=0)
    ties += tl.sum(equal.to(tl.int32), axis=0)
    return selected, taken + up_to - 1, ties, taken + tl.sum(selected.to(tl.int32), axis=0)
