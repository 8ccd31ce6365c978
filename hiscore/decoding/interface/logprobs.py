"""Log-probabilities of sampled tokens and of their alternatives, as they travel from the device to the caller.

The model's own logits count, before temperature, penalties and filters: vLLM's `raw_logprobs`.
"""

from typing import NamedTuple

import numpy as np

from hiscore.arrays import Float32, Int32, Int64
from hiscore.decoding.interface.sampling_batch import SamplingBatch

LEAST = -9999.0
"""A substitute for -inf, which JSON cannot hold; vLLM's frontend sends the same."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities of one sampled token and of the likeliest: int32 ids [K], best first, float32 values."""

    chosen: float
    top_ids: Int32
    top_values: Float32


def unpack(packed: Int64, sampling: SamplingBatch | None) -> dict[int, TokenLogprobs]:
    """Read what `hiscore.decoding.worker.token_sampler.pack_logprobs` made, int64 [n], on the host: by row."""
    if sampling is None or sampling.logprobs is None or not len(asked := sampling.logprob_rows):
        return {}
    of_rows = packed.reshape(len(asked), -1)
    alternatives = (of_rows.shape[1] - 1) // 2
    values = np.maximum(of_rows[:, : 1 + alternatives].copy().view(np.float64), LEAST).astype(np.float32)
    ids = of_rows[:, 1 + alternatives :].astype(np.int32)
    return {
        int(row): TokenLogprobs(float(values[place, 0]), ids[place, :count], values[place, 1 : 1 + count])
        for place, (row, count) in enumerate(zip(asked, sampling.logprobs[asked], strict=True))
    }
