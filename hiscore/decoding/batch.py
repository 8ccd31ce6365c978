"""Sequences as the rows of a launch."""

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.sequence import Sequence
from hiscore.decoding.uniforms import uniform
from hiscore.decoding.worker.interface import DecodeBatch, SamplingBatch

FLOAT32_MAX = float(np.finfo(np.float32).max)


def sampling_of(sequences: list[Sequence], positions: Int32) -> SamplingBatch:
    """How the tokens that will stand at `positions`, int32 [R], are sampled.

    A draw depends on its sequence's seed and the position alone, whatever else is in the batch.
    """
    options = [sequence.call.options for sequence in sequences]
    # A float64 may be beyond every float32, where all that is finite is equally likely anyhow.
    temperature = np.array([min(each.temperature, FLOAT32_MAX) for each in options], np.float32)
    uniforms = np.zeros(len(sequences))
    if temperature.any():
        uniforms = uniform(np.array([each.seed for each in options], np.int64), positions)
    return SamplingBatch(
        temperature,
        np.array([each.top_k for each in options], np.int32),
        np.array([each.top_p for each in options], np.float32),
        uniforms,
    )


def step_rows(sequences: list[Sequence]) -> DecodeBatch:
    """The next step of sequences that run."""
    seq_indices = np.array([sequence.seq_index for sequence in sequences], np.int32)
    positions = np.array([sequence.length for sequence in sequences], np.int32)
    return DecodeBatch(seq_indices, positions, sampling_of(sequences, positions + 1))
