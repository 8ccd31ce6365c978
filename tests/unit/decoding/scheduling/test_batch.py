"""Sequences as rows of a launch: positions, sampling parameters, and draws that depend on nothing else."""

import numpy as np
import pytest

from hiscore.decoding.scheduling.batch import make_decode_batch, make_sampling_batch, uniform
from tests.support.decode_worker import sequence_of


def test_a_step_feeds_each_sequence_s_newest_token_and_samples_the_next() -> None:
    first, second = sequence_of(5, temperature=1.0, seed=7), sequence_of(9, temperature=0.5, seed=8)
    first.held.seq_index, first.prefilled, first.sampled = 3, 5, 1
    second.held.seq_index, second.prefilled, second.sampled = 0, 9, 4
    batch = make_decode_batch([first, second])
    assert (batch.seq_indices.dtype, batch.positions.dtype) == (np.int32, np.int32)
    assert batch.seq_indices.tolist() == [3, 0]
    assert batch.positions.tolist() == [5, 12]
    assert batch.sampling.uniforms.tolist() == uniform([7, 8], [6, 13]).tolist()


def test_every_parameter_has_its_row() -> None:
    batch = make_sampling_batch(
        [
            sequence_of(5, temperature=0.0, top_k=3, top_p=0.5),
            sequence_of(5, temperature=2.0, top_k=0, top_p=1.0, seed=-4),
        ],
        np.array([6, 2], np.int32),
    )
    assert batch.temperature.tolist() == [0.0, 2.0]
    assert batch.top_k.tolist() == [3, 0]
    assert batch.top_p.tolist() == [0.5, 1.0]
    assert batch.uniforms[1] == uniform(-4, 2)
    assert (batch.temperature.dtype, batch.top_k.dtype, batch.top_p.dtype) == (
        np.float32,
        np.int32,
        np.float32,
    )
    assert batch.uniforms.dtype == np.float64


def test_a_draw_does_not_depend_on_the_other_rows() -> None:
    each = [sequence_of(5, temperature=1.0, seed=seed) for seed in (1, -1, 2**63 - 1)]
    positions = np.array([4, 9, 1], np.int32)
    together = make_sampling_batch(each, positions).uniforms
    alone = [make_sampling_batch([one], positions[i : i + 1]).uniforms[0] for i, one in enumerate(each)]
    assert together.tolist() == alone


@pytest.mark.filterwarnings("error")
def test_a_temperature_beyond_float32_is_clamped() -> None:
    batch = make_sampling_batch([sequence_of(5, temperature=1e308)], np.array([1], np.int32))
    assert batch.temperature.tolist() == [np.finfo(np.float32).max]


def test_uniforms_are_splitmix64s() -> None:
    """The published first outputs for the seed 1234567, of which 53 bits are kept."""
    published = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    expected = [(output >> 11) * 2.0**-53 for output in published]
    assert uniform(1234567, np.arange(4)).tolist() == expected
    assert [float(uniform(1234567, position)) for position in range(4)] == expected


def test_uniforms_depend_on_seed_and_position_alone() -> None:
    seeds = np.array([0, 1, -1, 2**63 - 1, -(2**63)])
    table = uniform(seeds[:, None], np.arange(50))
    assert ((table >= 0) & (table < 1)).all()
    assert len(np.unique(table)) == table.size
    assert (uniform(seeds, 7) == table[:, 7]).all()
