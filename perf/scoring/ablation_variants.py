"""The scorer without one of its optimisations. All variants give the scorer's own scores."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int32
from hiscore.device.copies import Uploads, upload
from hiscore.layers.lm_head import ROW_SLICE, LMHead
from hiscore.prefill.interface import ForwardRunner, Runner
from hiscore.scoring.decoder_scorer import DecoderPacking
from hiscore.scoring.requests.layout import lay_out, unpack
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.results.pending_scores import PendingScores
from hiscore.scoring.scorer import Scorer
from perf.scoring.step_after_prefill import StepAfter


class WholeVocabulary(LMHead):
    """Head that computes log-softmax over the whole vocabulary at every item and then picks the labels."""

    def label_logits(self, labels: Int32 | None, uploads: Uploads) -> Callable[[Tensor], Tensor]:
        """Map hidden [R, H] to float32 [R, labels] whose softmax over labels equals that of the logits."""
        assert labels is not None, "a classifier has no vocabulary"
        columns = uploads.add(labels)

        def compute(hidden: Tensor) -> Tensor:
            slices = [self._capped(self._product(rows)) for rows in hidden.split(ROW_SLICE)]
            return torch.cat([logits.log_softmax(dim=-1)[:, columns()] for logits in slices])

        return compute


def with_whole_vocabulary(scorer: Scorer) -> Scorer:
    """The scorer with `WholeVocabulary` as its head."""
    head = scorer.computation.head
    whole = WholeVocabulary(head._weight, head._soft_cap)
    return Scorer(replace(scorer.computation, head=whole), scorer.facts, scorer.packing)


def without_graphs(scorer: Scorer) -> Scorer:
    """A GPU's scorer with every kernel launched by the host and its own pool of the same size."""
    from hiscore.prefill.cuda_runner import CudaRunner

    class EagerRunner(CudaRunner):
        def _capture(self) -> None:
            pass

    assert isinstance(scorer.runner, CudaRunner)
    slots = scorer.runner.pool.shape[1]
    return _with_runner(
        scorer, EagerRunner(scorer.runner._decoder, slots, cast(DecoderPacking, scorer.packing).budget)
    )


def with_decode_step(scorer: Scorer, sampled: bool) -> Scorer:
    """The scorer with a decode step after each forward (`StepAfter`).

    Raises:
        ValueError: It has a prefix cache.
    """
    if scorer.packing.cache.caching:
        raise ValueError("the decode step needs the pool for itself: give the scorer no query cache")
    head = scorer.computation.head if sampled else None
    return _with_runner(scorer, StepAfter(cast(Runner, scorer.runner), head))


def _with_runner(scorer: Scorer, runner: ForwardRunner) -> Scorer:
    return Scorer(replace(scorer.computation, runner=runner), scorer.facts, scorer.packing)


@dataclass(frozen=True)
class Marked:
    """A call on the wire: ids with a delimiter before, between and after the items."""

    input_ids: Int32
    delimiter_indices: Int32
    like: ScoreRequest

    def unpacked(self, delimiters: Int32) -> ScoreRequest:
        """The call whose items lie between these delimiters."""
        return replace(self.like, prompt=unpack(self.input_ids, delimiters))


def mark(call: ScoreRequest, delimiter: int) -> Marked:
    """Lay a call out with delimiters.

    Raises:
        ValueError: A token has the delimiter's id, so that a search would cut the call in the wrong place.
    """
    if (call.prompt.tokens == delimiter).any():
        raise ValueError(f"a token has the delimiter's id {delimiter}")
    ids, delimiters = lay_out(call.prompt)
    ids[delimiters] = delimiter
    return Marked(ids, delimiters, call)


def submit_indexed(scorer: Scorer, calls: Sequence[Marked]) -> PendingScores:
    """Launch a batch whose delimiters' positions are known."""
    return scorer.submit([call.unpacked(call.delimiter_indices) for call in calls])


def submit_searching(scorer: Scorer, calls: Sequence[Marked], delimiter: int) -> PendingScores:
    """Launch a batch whose delimiters are searched for on the device by `nonzero`.

    Only the device knows how many it finds, so the host has to wait for everything launched before.
    """
    ids = upload(np.concatenate([call.input_ids for call in calls]), scorer.device)
    positions = (ids == delimiter).nonzero()[:, 0].cpu().numpy().astype(np.int32)
    begins = np.cumsum([0, *(len(call.input_ids) for call in calls[:-1])])
    of_calls = np.split(positions, np.searchsorted(positions, begins[1:]))
    return scorer.submit(
        [
            call.unpacked(delimiters - int(begin))
            for call, delimiters, begin in zip(calls, of_calls, begins, strict=True)
        ]
    )


def as_single_items(call: ScoreRequest) -> list[ScoreRequest]:
    """A call for each item: the query with that item alone."""
    query, *items = parts(call.prompt)
    return [
        replace(
            call, prompt=MultiItemPrompt(np.concatenate((query, item)), len(query), np.array([len(item)]))
        )
        for item in items
    ]


def parts(prompt: MultiItemPrompt) -> list[Int32]:
    """The tokens of the query, followed by those of each item."""
    ends = prompt.query_length + np.cumsum(prompt.item_lengths)
    return np.split(prompt.tokens, [prompt.query_length, *ends[:-1]][: len(ends)])
