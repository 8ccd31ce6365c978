"""The k largest of many numbers, without sorting: functions for other kernels.

Numbers are compared as uint32 in the same order. The k-th largest is found two bits at a time, from the highest;
each pass counts how many reach each of three thresholds. What is chosen comes out in the order of its places, and
among equals the lower place is chosen.
"""

import triton
import triton.language as tl

# Above every key that a float can have.
ALWAYS = tl.constexpr(0xFFFFFFFF)
_COUNT_BITS = tl.constexpr(21)
_COUNT_MASK = tl.constexpr((1 << 21) - 1)


@triton.jit
def float_key(value):
    """float32 -> uint32 of the same order, below ALWAYS; both zeros are equal, NaN is beside infinity."""
    bits = value.to(tl.int32, bitcast=True)
    bits = tl.where(bits == -2147483648, 0, bits)
    bits = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return tl.minimum(bits.to(tl.uint32, bitcast=True) ^ 0x80000000, ALWAYS - 1)


@triton.jit
def kth_largest(keys, count, k, most, BLOCK: tl.constexpr):
    """The k-th largest of keys uint32 [count], 1 <= k <= count < 2^21, and how many equal to it are chosen.

    most: uint32, no key is greater. A search that ends early returns less than the k-th, yet more than the one
    after it.
    """
    low = tl.zeros([], tl.uint32)
    step = low + (1 << 30)
    # Bits that no key has need no pass.
    while step > most:
        step = step >> 2
    # Keys that reach `low`, and those that reach the end of the range that is left: reaching >= k > beyond.
    reaching = count + 0
    beyond = count * 0
    while (step > 0) & (reaching != k):
        packed = tl.zeros([BLOCK], tl.int64)
        for begin in range(0, count, BLOCK):
            place = begin + tl.arange(0, BLOCK)
            # Zero reaches no threshold.
            key = tl.load(keys + place, mask=place < count, other=0)
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
def choose(key, there, low, allowed, ties, taken):
    """One block of places after the search: which are chosen, each one's rank, and the running numbers.

    key uint32 [BLOCK], there bool [BLOCK]; low, allowed: what `kth_largest` returned. ties, taken: from the block
    before, at first 0.
    """
    equal = there & (key == low)
    seen = tl.cumsum(equal.to(tl.int32), axis=0)
    chosen = there & ((key > low) | (equal & (ties + seen <= allowed)))
    upto = tl.cumsum(chosen.to(tl.int32), axis=0)
    ties += tl.sum(equal.to(tl.int32), axis=0)
    return chosen, taken + upto - 1, ties, taken + tl.sum(chosen.to(tl.int32), axis=0)
