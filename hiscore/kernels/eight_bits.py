"""Constants of numbers in 8 bits with a scale for each row, for kernels and PyTorch alike."""

FP8_LARGEST = 448.0
"""float8_e4m3fn's largest number; it has no infinity."""
INT8_LARGEST = 127.0
"""Symmetric: -128 is not used."""
SMALLEST_PEAK = 1e-30
"""Lower bound on the peak by which a row is scaled: a row of zeros stays zero."""

NO_FORMAT, FP8_FORMAT, INT8_FORMAT = 0, 1, 2
"""What kernels call the format of a row that they store."""
