"""How rows are sampled, as kernels read it: float64 [10, R]; `decoding.worker.sampling_options` fills it."""

import triton
import triton.language as tl

FED, COUNTED, TEMPERATURE, TOP_K, TOP_P, UNIFORM, MIN_P, REPETITION, PRESENCE, FREQUENCY = (
    tl.constexpr(place) for place in range(10)
)


@triton.jit
def option(row_options, rows, row, PLACE: tl.constexpr):
    """One option of a row, float64."""
    return tl.load(row_options + PLACE * rows + row)


@triton.jit
def weighing(row_options, rows, row):
    """What weights depend on beside logits: temperature and min-p, float32."""
    temperature = option(row_options, rows, row, TEMPERATURE)
    return temperature.to(tl.float32), option(row_options, rows, row, MIN_P).to(tl.float32)


@triton.jit
def filters(row_options, rows, row, vocabulary):
    """Top-k, int32 and 0 for none; top-p, float64 and above 0; and whether there is either."""
    k = option(row_options, rows, row, TOP_K)
    k = tl.where(k < vocabulary, k, 0.0).to(tl.int32)
    # One that float32 rounds to 0 keeps the likeliest token, as any other does that is too small for two.
    p = tl.maximum(option(row_options, rows, row, TOP_P), 1.17549435e-38)
    return k, p, (k > 0) | (p < 1.0)
