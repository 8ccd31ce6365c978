"""The floor counts what a step reads."""

import pytest

from perf.decoding.memory_floor import floor_ms
from perf.models import random_checkpoint as geometry
from perf.models.geometries import GEOMETRIES


def test_a_floor_counts_what_a_step_reads() -> None:
    """Qwen3-8B has 8.19e9 weights, of which the embedding (0.62e9) is not read; a token is 147,456 bytes."""
    assert geometry.read_bytes(GEOMETRIES["qwen3-8b"]) == pytest.approx(2 * (8.19e9 - 0.622e9), rel=1e-3)
    assert geometry.read_bytes(GEOMETRIES["qwen3-0.6b"]) == pytest.approx(2 * 0.596e9, rel=1e-3)
    at = {length: floor_ms(GEOMETRIES["qwen3-8b"], length, 1e12) for length in (0, 1_000)}
    assert at[1_000] - at[0] == pytest.approx(147_456 * 1_000 / 1e12 * 1e3)
