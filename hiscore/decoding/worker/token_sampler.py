"""Everything between a launch's logits and its tokens: biases, penalties, the draw and log-probabilities."""

import logging
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.decoding.worker.sampler import sample_batch
from hiscore.decoding.worker.sampling_batch import LogitBias, Masks, SamplingBatch
from hiscore.decoding.worker.token_counts import ROWS_AT_ONCE, TokenCounts
from hiscore.decoding.worker.token_logprobs import pack_logprobs
from hiscore.device import upload
from hiscore.errors import Code, RequestError

log = logging.getLogger(__name__)


class Sampled(NamedTuple):
    """What a batch of R rows became.

    Attributes:
        ids: int64 [R].
        reported: What `pack_logprobs` makes of the rows that report log-probabilities.
        failures: By row: why it has no token.
    """

    ids: Tensor
    reported: Tensor | None
    failures: dict[int, Exception]


class TokenSampler:
    """Samples rows of running sequences, in the order of vLLM's sampler: bias, penalties, temperature, filters.

    Args:
        max_sequences: Sequences that run at once.
        device: Of the logits.
    """

    def __init__(self, max_sequences: int, device: torch.device) -> None:
        self._counts = TokenCounts(max_sequences, device)

    def sample(self, logits: Tensor, seq_indices: Int32, sampling: SamplingBatch) -> Sampled:
        """Sample a batch. Biases, penalties and masks change the logits in place.

        Where there is no memory for them, the rows that have any fail, and no others.

        Args:
            logits: float32 [R, V].
            seq_indices: int32 [R].
            sampling: Of R rows.
        """
        reported: Tensor | None = None
        error: torch.OutOfMemoryError | None = None
        try:
            # A copy: log-probabilities are of the model's own logits.
            own = logits[upload(sampling.logprob_rows, logits.device)] if len(sampling.logprob_rows) else None
            self._change(logits, seq_indices, sampling)
        except torch.OutOfMemoryError as lacking:
            error, own = lacking, None
        ids = sample_batch(logits, sampling)
        try:
            if sampling.penalties is not None and error is None:
                self._counts.count(ids, sampling.penalties, seq_indices)
            if own is not None:
                chosen = ids[upload(sampling.logprob_rows, logits.device)]
                reported = pack_logprobs(own, chosen, sampling.alternatives)
        except torch.OutOfMemoryError as lacking:
            error = lacking
        if error is None:
            return Sampled(ids, reported, {})
        log.error("no memory to sample %d rows with more than a draw: %s", len(sampling.special_rows), error)
        answer = RequestError(
            "there is no memory left for what this request's sampling needs", Code.UNAVAILABLE
        )
        return Sampled(ids, reported, dict.fromkeys(sampling.special_rows, answer))

    def _change(self, logits: Tensor, seq_indices: Int32, sampling: SamplingBatch) -> None:
        if sampling.bias is not None:
            add_bias(logits, sampling.bias)
        if sampling.penalties is not None:
            self._counts.penalise(logits, sampling.penalties, seq_indices)
        if sampling.masks is not None:
            apply_masks(logits, sampling.masks)


def add_bias(logits: Tensor, bias: LogitBias) -> None:
    """Add to single logits, in place. Ids beyond the vocabulary cannot be sampled anyway."""
    known = bias.ids < logits.shape[-1]
    places = upload(np.stack((bias.rows[known], bias.ids[known])), logits.device)
    # No place is named twice, so adding is one gather and one scatter, in no particular order.
    values = logits[places[0], places[1]] + upload(bias.values[known], logits.device)
    logits[places[0], places[1]] = values


def apply_masks(logits: Tensor, masks: Masks) -> None:
    """Leave rows only what their masks allow, in place."""
    rows, bits = upload(masks.rows, logits.device), upload(masks.bits, logits.device)
    places = torch.arange(32, dtype=torch.int32, device=logits.device)
    vocabulary = logits.shape[-1]
    for first in range(0, len(rows), ROWS_AT_ONCE):
        part = rows[first : first + ROWS_AT_ONCE]
        allowed = (
            (bits[first : first + ROWS_AT_ONCE, :, None] >> places & 1).bool().flatten(1)[:, :vocabulary]
        )
        own = logits.index_select(0, part)
        own[:, allowed.shape[1] :] = -torch.inf
        own[:, : allowed.shape[1]].masked_fill_(~allowed, -torch.inf)
        logits.index_copy_(0, part, own)
