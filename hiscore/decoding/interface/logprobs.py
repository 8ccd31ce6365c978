"""Log-probabilities of sampled tokens and of their alternatives, as they travel from the device to the caller.

They are those of the model's own logits, before temperature, penalties and filters: vLLM's `raw_logprobs`.
"""

from typing import NamedTuple

import numpy as np

from hiscore.arrays import Float32, Int32, Int64
from hiscore.decoding.interface.sampling_batch import SamplingBatch

LEAST = -9999.0
"""In place of -inf, which JSON cannot hold; vLLM's frontend does the same."""


class TokenLogprobs(NamedTuple):
    """Log-probabilities of one sampled token.

    Attributes:
        chosen: Its log-probability.
        top_ids: int32 [K]: the likeliest tokens, best first.
        top_values: float32 [K]: their log-probabilities.
    """

    chosen: float
    top_ids: Int32
    top_values: Float32


def unpack(packed: Int64, sampling: SamplingBatch | None) -> dict[int, TokenLogprobs]:
    """Read `hiscore.decoding.worker.token_sampler.pack_logprobs` on the host.

    Args:
        packed: int64 [n]; if no row reports any, it may hold anything.
        sampling: How the rows were sampled, and which of them report any.

    Returns:
        By row.
    """
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
