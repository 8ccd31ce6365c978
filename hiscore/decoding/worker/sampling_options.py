"""Sampling options of a step's rows in one tensor, for one copy; `kernels.sampling_options` reads it."""

from hiscore.arrays import Float64, Int32
from hiscore.decoding.interface.sampling_batch import SamplingBatch

OPTIONS = 10


def fill_options(options: Float64, seq_indices: Int32, sampling: SamplingBatch | None) -> None:
    """Fill zeros, float64 [OPTIONS, rows], for R rows that a graph can sample; None: greedy. Others are padding.

    In order: sequence indices, -1 for padding; the same of rows with penalties, -1 for others; temperature, top_k,
    top_p, uniforms and min_p; repetition, presence and frequency penalties.
    """
    count = len(seq_indices)
    options[:2] = -1
    options[0, :count] = seq_indices
    if sampling is None:
        return
    if sampling.temperature.any():
        drawn = (sampling.temperature, sampling.top_k, sampling.top_p, sampling.uniforms)
        for place, values in enumerate(drawn, start=2):
            options[place, :count] = values
        if sampling.min_p is not None:
            options[6, :count] = sampling.min_p
    if (penalties := sampling.penalties) is not None:
        options[1, penalties.rows] = seq_indices[penalties.rows]
        for place, values in enumerate(
            (penalties.repetition, penalties.presence, penalties.frequency), start=7
        ):
            options[place, penalties.rows] = values
