"""The scorer: a batch of calls in, scores out, by as few prefill-only forwards as the token budget allows."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.torch_attention import TorchAttention
from hiscore.errors import RequestError
from hiscore.kv_pages import PAGE, KVPages
from hiscore.layout import Call, IntArray
from hiscore.model.decoder import Decoder
from hiscore.model.head import label_logits, log_normaliser
from hiscore.options import ScoreOptions
from hiscore.packing import Forward, pack, pool_reserve
from hiscore.readout import Float32, scores_of
from hiscore.validation import CheckpointFacts

log = logging.getLogger(__name__)

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True)
class ScoreCall:
    """A checked call in token space with its labels (int32 [labels], none for a classifier) and options."""

    call: Call
    labels: IntArray
    options: ScoreOptions


@dataclass(frozen=True)
class Scores:
    """scores: float32 [items, labels]; usage in tokens."""

    scores: Float32
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class BatchStats:
    """What a batch cost."""

    forwards: int
    tokens: int
    items: int
    cached_tokens: int


class Scorer:
    """One checkpoint on one device."""

    def __init__(
        self,
        checkpoint: Path,
        device: str = "auto",
        dtype: str = "auto",
        max_batch_tokens: int = 16_384,
        query_cache_bytes: int = 2**28,
    ) -> None:
        self.device = torch.device(_pick_device(device))
        self.dtype = DTYPES[_pick_dtype(dtype, self.device)]
        self._decoder = Decoder(checkpoint, self.device, self.dtype)
        self._attention = TorchAttention(self._decoder.attention_shape)
        self._budget = max_batch_tokens
        reserve = pool_reserve(self.facts.context_length, max_batch_tokens)
        page_bytes = PAGE * self._decoder.slot_bytes
        pages = reserve + query_cache_bytes // page_bytes
        self._pages = KVPages(pages, reserve, caching=query_cache_bytes > 0)
        self._pool = self._decoder.new_pool(pages * PAGE)
        log.info(
            "%s decoder on %s in %s, attention by %s; at most %d tokens a forward, %d MiB for the keys and values "
            "of queries, %d MiB of them to cache",
            self._decoder.architecture.family,
            self.device,
            self.dtype,
            type(self._attention).__name__,
            max_batch_tokens,
            pages * page_bytes >> 20,
            query_cache_bytes >> 20,
        )

    @property
    def facts(self) -> CheckpointFacts:
        a = self._decoder.architecture
        return CheckpointFacts(a.vocab_size, a.context_length, a.is_classifier)

    @torch.inference_mode()
    def score(self, calls: Sequence[ScoreCall]) -> tuple[list[Scores | RequestError], BatchStats]:
        """Score all the calls together. An answer that is not finite fails its own call alone."""
        batch = pack([call.call for call in calls], self._budget, self._pages)
        ends = np.cumsum([len(call.call.item_lengths) for call in calls])
        rows = [slice(end - len(call.call.item_lengths), end) for call, end in zip(calls, ends, strict=True)]
        try:
            hidden = self._hidden_states(batch.forwards, int(ends[-1]))
        except Exception:
            # The cache counts on keys and values that were perhaps never written.
            self._pages.forget()
            raise
        logits = self._logits(calls, rows, hidden)
        normalisers = self._normalisers(calls, rows, hidden)
        answers = [
            self._answer(*parts)
            for parts in zip(calls, logits, normalisers, batch.cached_tokens, strict=True)
        ]
        tokens = sum(len(forward.input_ids) for forward in batch.forwards)
        return answers, BatchStats(len(batch.forwards), tokens, int(ends[-1]), sum(batch.cached_tokens))

    def _hidden_states(self, forwards: Sequence[Forward], items: int) -> Tensor:
        """Every item's hidden state [items, hidden_size], in the order of the calls."""
        width = self._decoder.architecture.hidden_size
        hidden = torch.empty((items, width), dtype=self.dtype, device=self.device)
        for forward in forwards:
            answers = torch.as_tensor(forward.answers, device=self.device)
            hidden[answers] = self._decoder.forward(forward, self._attention, self._pool)
        return hidden

    def _logits(self, calls: Sequence[ScoreCall], rows: Sequence[slice], hidden: Tensor) -> list[Float32]:
        """Each call's logits [items, labels]; calls with the same labels share one product."""
        head = self._decoder.weights.head
        sharing: dict[bytes, list[int]] = defaultdict(list)
        for index, call in enumerate(calls):
            sharing[call.labels.tobytes()].append(index)
        logits: list[Float32] = [np.empty((0, 0), np.float32)] * len(calls)
        for members in sharing.values():
            columns = calls[members[0]].labels
            if self.facts.is_classifier:
                columns = np.arange(len(head), dtype=np.int32)
            together = label_logits(
                torch.cat([hidden[rows[index]] for index in members]),
                head,
                torch.as_tensor(columns, dtype=torch.int64, device=self.device),
                self._decoder.architecture.logit_soft_cap,
            ).cpu()
            lengths = [rows[index].stop - rows[index].start for index in members]
            for index, part in zip(members, together.split(lengths), strict=True):
                logits[index] = part.numpy()
        return logits

    def _normalisers(
        self, calls: Sequence[ScoreCall], rows: Sequence[slice], hidden: Tensor
    ) -> list[Float32 | None]:
        """Each call's log normaliser [items], for those calls whose scores need one."""
        found: list[Float32 | None] = [None] * len(calls)
        if self.facts.is_classifier:
            return found
        members = [index for index, call in enumerate(calls) if not call.options.apply_softmax]
        if members:
            together = log_normaliser(
                torch.cat([hidden[rows[index]] for index in members]),
                self._decoder.weights.head,
                self._decoder.architecture.logit_soft_cap,
            ).cpu()
            lengths = [rows[index].stop - rows[index].start for index in members]
            for index, part in zip(members, together.split(lengths), strict=True):
                found[index] = part.numpy()
        return found

    def _answer(
        self, call: ScoreCall, logits: Float32, normaliser: Float32 | None, cached_tokens: int
    ) -> Scores | RequestError:
        try:
            scores = scores_of(logits, normaliser, call.options, self.facts.is_classifier)
        except RequestError as error:
            return error
        return Scores(scores, len(call.call.tokens), cached_tokens)


def _pick_device(device: str) -> str:
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    return device


def _pick_dtype(dtype: str, device: torch.device) -> str:
    if dtype == "auto":
        return "bfloat16" if device.type == "cuda" else "float32"
    return dtype
