"""Streams as the rows of a launch."""

from collections.abc import Sequence

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.sequence import Stream
from hiscore.decoding.uniforms import uniform
from hiscore.decoding.worker.interface import Sampling, StepRows

FLOAT32_MAX = float(np.finfo(np.float32).max)


def sampling_of(streams: Sequence[Stream], positions: Int32) -> Sampling:
    """How the tokens that will stand at `positions`, int32 [R], are sampled.

    A draw depends on its stream's seed and the position alone, whatever else is in the batch.
    """
    options = [stream.call.options for stream in streams]
    # A float64 may be beyond every float32, where all that is finite is equally likely anyhow.
    temperature = np.array([min(each.temperature, FLOAT32_MAX) for each in options], np.float32)
    uniforms = np.zeros(len(streams))
    if temperature.any():
        uniforms = uniform(np.array([each.seed for each in options], np.int64), positions)
    return Sampling(
        temperature,
        np.array([each.top_k for each in options], np.int32),
        np.array([each.top_p for each in options], np.float32),
        uniforms,
    )


def step_rows(streams: Sequence[Stream]) -> StepRows:
    """The next step of streams that run."""
    slots = np.array([stream.slot for stream in streams], np.int32)
    positions = np.array([stream.length for stream in streams], np.int32)
    return StepRows(slots, positions, sampling_of(streams, positions + 1))
