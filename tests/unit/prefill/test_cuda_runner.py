"""Numbers of rows that CUDA graphs are captured for."""

import pytest

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.prefill.cuda_runner import capture_sizes


def test_graphs_fit_every_number_of_rows_with_little_padding() -> None:
    sizes = capture_sizes(16_384)
    assert sizes == sorted(set(sizes))
    for rows in range(64, 16_385):
        bucket = next(b for b in sizes if b >= rows)
        assert bucket - rows < max(64, 0.125 * rows)
    assert capture_sizes(100)[-1] >= 100
