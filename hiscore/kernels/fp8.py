"""Constants of rows in fp8, for kernels and PyTorch alike."""

FP8_LARGEST = 448.0  # float8_e4m3fn's largest number; it has no infinity
SMALLEST_PEAK = 1e-30
"""Lower bound on the peak by which a row is scaled: a row of zeros stays zero."""
