"""Numbers that fp8 rows are scaled by; kernels and torch share them."""

LARGEST = 448.0
"""float8_e4m3fn's largest number; it has no infinity."""
SMALLEST_PEAK = 1e-30
"""A row is never scaled up as if its largest value were less: a row of zeros stays one."""
