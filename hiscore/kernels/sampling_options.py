"""Sampling options of rows as kernels read them: float64 [10, R], filled by `decoding.worker.sampling_options`."""

import triton
import triton.language as tl

FED, COUNTED, TEMPERATURE, TOP_K, TOP_P, UNIFORM, MIN_P, REPETITION, PRESENCE, FREQUENCY = (
    tl.constexpr(place) for place in range(10)
)
UNIT = tl.constexpr(4294967296.0)
"""The likeliest token's weight, see `fixed_point`."""
_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def option(row_options, rows, row, PLACE: tl.constexpr):
    """One option of a row, float64."""
    return tl.load(row_options + PLACE * rows + row)


@triton.jit
def weighing(row_options, rows, row):
    """Return, in float32, the temperature; the binary logarithm of the factor by which a logit greater by 1
    raises a weight; the least weight that is not dropped.
    """
    temperature = option(row_options, rows, row, TEMPERATURE).to(tl.float32)
    # Triton 3.6 takes the constant for a float64, and with it the maximum.
    scale = tl.div_rn(
        tl.zeros([], tl.float32) + _LOG2_E, tl.maximum(temperature, 1.17549435e-38).to(tl.float32)
    )
    least = tl.ceil(option(row_options, rows, row, MIN_P).to(tl.float32) * UNIT)
    return temperature, scale, tl.maximum(least, 1.0)


@triton.jit
def filters(row_options, rows, row, vocabulary):
    """Top-k, int32 and 0 for none; top-p, float64 and above 0; and whether there is either."""
    k = option(row_options, rows, row, TOP_K)
    k = tl.where(k < vocabulary, k, 0.0).to(tl.int32)
    # One that float32 rounds to 0 keeps the likeliest token, as any other does that is too small for two.
    p = tl.maximum(option(row_options, rows, row, TOP_P), 1.17549435e-38)
    return k, p, (k > 0) | (p < 1.0)
