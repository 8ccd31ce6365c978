"""Everything between a launch's logits and its tokens: biases, penalties, the draw and log-probabilities."""

import logging
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32, Int64
from hiscore.decoding.interface.sampling_batch import ROWS_AT_ONCE, LogitBias, Masks, SamplingBatch
from hiscore.decoding.worker.sampler import greedy, sample_batch
from hiscore.decoding.worker.token_counts import TokenCounts
from hiscore.device.copies import upload
from hiscore.device.loss import is_device_lost
from hiscore.errors import Code, RequestError

log = logging.getLogger(__name__)


class Sampled(NamedTuple):
    """Token ids, int64 [R], `pack_logprobs` of the rows that report any, and errors of rows without a token."""

    ids: Tensor
    reported: Tensor | None
    failures: dict[int, Exception]


class TokenSampler:
    """Samples rows of running sequences, in the order of vLLM's sampler: bias, penalties, temperature, filters.

    Tokens are counted in `counts` if others count there too; None: in a table of its own.
    """

    def __init__(self, max_sequences: int, device: torch.device, counts: TokenCounts | None = None) -> None:
        self._counts = counts or TokenCounts(max_sequences, device)

    def sample(self, logits: Tensor, seq_indices: Int32, sampling: SamplingBatch) -> Sampled:
        """Sample a batch, float32 [R, V]. Biases, penalties and masks change the logits in place.

        A row that cannot be sampled, for want of memory or because of what it asks for, is a failure of its own.
        """
        failures: dict[int, Exception] = {}
        reporting = [int(row) for row in sampling.logprob_rows]
        kept: list[tuple[list[int], Tensor]] = []

        def keep(rows: list[int]) -> None:
            # A copy: log-probabilities are of the model's own logits.
            kept.append((rows, logits[upload(np.array(rows), logits.device)]))

        launch_for(reporting, keep, failures)
        self._change(logits, seq_indices, sampling, failures)
        ids = _draw(logits, sampling, failures)
        if (penalties := sampling.penalties) is not None:
            launch_for(
                penalties.rows.tolist(),
                lambda rows: self._counts.count(ids, penalties.only(rows), seq_indices),
                failures,
            )
        if not reporting:
            return Sampled(ids, None, failures)
        packed: dict[int, Tensor] = {}
        for of_rows, own in kept:

            def report(rows: list[int], of_rows: list[int] = of_rows, own: Tensor = own) -> None:
                chosen = ids[upload(np.array(rows), ids.device)]
                asked = own if len(rows) == len(of_rows) else own[of_rows.index(rows[0])][None]
                reports = pack_logprobs(asked, chosen, sampling.alternatives)
                packed.update(zip(rows, reports.view(len(rows), -1), strict=True))

            launch_for(of_rows, report, failures)
        nothing = ids.new_zeros(1 + 2 * sampling.alternatives)
        return Sampled(ids, torch.cat([packed.get(row, nothing) for row in reporting]), failures)

    def _change(
        self, logits: Tensor, seq_indices: Int32, sampling: SamplingBatch, failures: dict[int, Exception]
    ) -> None:
        bias, penalties, masks = sampling.bias, sampling.penalties, sampling.masks
        if bias is not None:
            launch_for(
                np.unique(bias.rows).tolist(), lambda rows: add_bias(logits, bias.only(rows)), failures
            )
        if penalties is not None:
            for part in _parts(penalties.rows):
                launch_for(
                    part,
                    lambda rows: self._counts.penalise(logits, penalties.only(rows), seq_indices),
                    failures,
                )
        if masks is not None:
            for part in _parts(masks.rows):
                launch_for(part, lambda rows: apply_masks(logits, masks.only(rows)), failures)


def _parts(rows: Int64) -> list[list[int]]:
    return [rows[first : first + ROWS_AT_ONCE].tolist() for first in range(0, len(rows), ROWS_AT_ONCE)]


def _draw(logits: Tensor, sampling: SamplingBatch, failures: dict[int, Exception]) -> Tensor:
    """Draw a token for each row, int64 [R]; an arbitrary one for rows that fail."""
    drawn: list[Tensor] = []
    if error_of(lambda: drawn.append(sample_batch(logits, sampling))) is None:
        return drawn[0]
    ids = greedy(logits)
    for row in np.flatnonzero(sampling.temperature).tolist():

        def draw(rows: list[int]) -> None:
            (own,) = rows
            ids[own : own + 1] = sample_batch(logits[own : own + 1], sampling.draw_of(own))

        launch_for([row], draw, failures)
    return ids


def add_bias(logits: Tensor, bias: LogitBias) -> None:
    """Add to single logits, in place. Ids beyond the vocabulary cannot be sampled anyway."""
    known = bias.ids < logits.shape[-1]
    places = upload(np.stack((bias.rows[known], bias.ids[known])), logits.device)
    # No place is named twice, so adding is one gather and one scatter, in no particular order.
    values = logits[places[0], places[1]] + upload(bias.values[known], logits.device)
    logits[places[0], places[1]] = values


def apply_masks(logits: Tensor, masks: Masks) -> None:
    """Leave rows only what their masks allow, in place; raise ValueError for a mask of another shape or type."""
    stacked = np.stack(masks.bits)
    if stacked.dtype != np.int32 or stacked.ndim != 2:
        raise ValueError(f"a mask is {stacked.dtype} {list(stacked.shape[1:])}, not int32 [words]")
    rows, bits = upload(masks.rows, logits.device), upload(stacked, logits.device)
    places = torch.arange(32, dtype=torch.int32, device=logits.device)
    allowed = (bits[:, :, None] >> places & 1).bool().flatten(1)[:, : logits.shape[-1]]
    own = logits.index_select(0, rows)
    own[:, allowed.shape[1] :] = -torch.inf
    own[:, : allowed.shape[1]].masked_fill_(~allowed, -torch.inf)
    logits.index_copy_(0, rows, own)


def pack_logprobs(logits: Tensor, chosen: Tensor, alternatives: int) -> Tensor:
    """Pack the log-probabilities of tokens, int64 [P], and of the K likeliest, for one copy to the host.

    The logits are float32 [P, V], as the model gave them; a vocabulary that is smaller than K repeats its last.

    Returns:
        int64 [P * (1 + 2 K)]: for each row the bits of K + 1 float64 values, the chosen token's first, then K ids.
    """
    normaliser = logits.logsumexp(-1, keepdim=True)
    top, ids = logits.topk(min(alternatives, logits.shape[-1]))
    if (lacking := alternatives - ids.shape[-1]) > 0:
        top = torch.cat((top, top[:, -1:].expand(-1, lacking)), -1)
        ids = torch.cat((ids, ids[:, -1:].expand(-1, lacking)), -1)
    values = torch.cat((logits.gather(-1, chosen[:, None]), top), -1) - normaliser
    return torch.cat((values.double().view(torch.int64), ids), -1).flatten()


def launch_for(
    rows: Iterable[int], launch: Callable[[list[int]], None], failures: dict[int, Exception]
) -> None:
    """Launch for all rows that have not failed; if that fails, for each alone. Raise if the device is lost.

    A launch that raises has changed nothing that it would not change again; `failures` takes errors of rows.
    """
    going = [row for row in rows if row not in failures]
    if not going or (error := error_of(lambda: launch(going))) is None:
        return
    if len(going) == 1:
        failures[going[0]] = error
        return
    log.warning("%d rows cannot be sampled together, so each is alone: %s", len(going), error)
    for row in going:
        launch_for([row], launch, failures)


def error_of(launch: Callable[[], None]) -> Exception | None:
    """Launch, and return the error as its caller may be told it; raise it if the device is lost."""
    try:
        launch()
    except torch.OutOfMemoryError as lacking:
        log.error("no memory to sample: %s", lacking)
        return RequestError(
            "there is no memory left for what this request's sampling needs", Code.UNAVAILABLE
        )
    except Exception as error:
        if is_device_lost(error):
            raise
        log.exception("sampling fails")
        return error.with_traceback(None)
    return None
