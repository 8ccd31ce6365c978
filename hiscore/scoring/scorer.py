"""The scorer: a batch of requests in, scores out, in as few prefill-only forwards as the token budget allows."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from hiscore.arrays import Float32
from hiscore.device import download
from hiscore.errors import RequestError
from hiscore.models.config import read_architecture
from hiscore.models.server_resources import ServerResources
from hiscore.models.support import CheckpointFacts
from hiscore.parallel.rank import Leader, OneRank
from hiscore.prefill.runner import ForwardRunner
from hiscore.scoring.batch_plan import ScoringPlan
from hiscore.scoring.computation import PLACE, Checkpoint, Computation, compute, set_up
from hiscore.scoring.head_results import own_counts
from hiscore.scoring.longrope import LongropeTables
from hiscore.scoring.packing import Batch, pack
from hiscore.scoring.precision import dtype_of, pick_dtype, use_device, warn_if_slow
from hiscore.scoring.prefix_cache import PAGE, PrefixCache
from hiscore.scoring.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.score_reader import ScoreReader, reader_of

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Scores:
    """The answer to a request.

    Attributes:
        scores: float32 [items, labels].
        prompt_tokens: Tokens of the query, counted once, and of all items.
        cached_tokens: How many of them came from the prefix cache.
    """

    scores: Float32
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class BatchStats:
    """What a batch cost: forwards, the tokens they computed, items scored, tokens from the prefix cache."""

    forwards: int
    tokens: int
    items: int
    cached_tokens: int


class PendingScores:
    """A launched batch, which may not have finished."""

    def __init__(
        self, requests: Sequence[ScoreRequest], batch: Batch, host: Tensor,
        shapes: list[tuple[list[int], int | None]], copy_done: torch.cuda.Event | None, is_classifier: bool,
    ) -> None:  # fmt: skip
        """Keep what `result` needs.

        Args:
            requests: The requests of the batch.
            batch: Its forwards.
            host: float32 [n] on the host: the results one after another, row-major.
            shapes: Of each result: the requests whose items are its rows, and its columns; None: one number for
                each label of each item.
            copy_done: Recorded after the copy to `host`; None if there was none.
            is_classifier: Whether the logits are a classifier's.
        """
        self._requests, self._batch = requests, batch
        self._host, self._shapes = host, shapes
        self._copy_done = copy_done
        self._is_classifier = is_classifier

    def result(self) -> tuple[list[Scores | RequestError], BatchStats]:
        """Wait for the results and turn logits into scores; call it once."""
        readers = [_reader(request, self._is_classifier) for request in self._requests]
        if self._copy_done is not None:
            self._copy_done.synchronize()
        items = [len(request.prompt.item_lengths) for request in self._requests]
        results: list[Float32 | None] = [None] * len(items)
        values = self._host.numpy()
        for members, width in self._shapes:
            for index in members:
                if width is None:
                    size = int(own_counts(self._requests[index]).sum())
                    results[index] = values[:size]
                else:
                    size = items[index] * width
                    results[index] = values[:size].reshape(items[index], width)
                values = values[size:]
        answers = [
            self._read(index, readers[index], found)
            for index, found in enumerate(results)
            if found is not None
        ]
        forwards, cached = self._batch.forwards, self._batch.cached_tokens
        tokens = sum(len(forward.input_ids) for forward in forwards)
        return answers, BatchStats(len(forwards), tokens, sum(items), sum(cached))

    def _read(self, index: int, reader: ScoreReader | RequestError, result: Float32) -> Scores | RequestError:
        if isinstance(reader, RequestError):
            return reader
        try:
            scores = reader(result)
        except RequestError as error:
            return error
        return Scores(scores, len(self._requests[index].prompt.tokens), self._batch.cached_tokens[index])


def _reader(request: ScoreRequest, is_classifier: bool) -> ScoreReader | RequestError:
    try:
        return reader_of(request, is_classifier)
    except RequestError as error:
        return error


class Scorer:
    """One checkpoint, on one device or several."""

    def __init__(
        self,
        checkpoint: Path,
        device: str = "auto",
        dtype: str = "auto",
        max_batch_tokens: int = 16_384,
        query_cache_bytes: int | None = None,
        max_context: int | None = None,
        resources: ServerResources | None = None,
        leader: Leader | None = None,
    ) -> None:
        """Plan the memory, load a checkpoint, allocate its KV pool and, on CUDA, capture graphs.

        Args:
            checkpoint: Its directory.
            device: As for `torch.device`; "auto": a GPU if there is one.
            dtype: The setting; "auto": bfloat16 on a GPU, else float32.
            max_batch_tokens: Tokens of one forward.
            query_cache_bytes: Room on the device for keys and values of cached queries; 0: no cache; None: see
                `default_cache_bytes`.
            max_context: Tokens of query and item at most; None: see `context_limit`.
            resources: What the model shares with its server; None: there is no server.
            leader: Of the ranks that compute together, whose devices count instead; None: there is one.

        Raises:
            UnsupportedCheckpoint: The decoder cannot compute the checkpoint.
            MemoryExceeded: The device has no room for it.
            ValueError: The device has no such format, or `max_context` exceeds the checkpoint's context.
            RankError: One of these, on one of several ranks.
        """
        self._leader = leader or OneRank(use_device(device))
        self.device = self._leader.rank.device
        a, _ = read_architecture(checkpoint, max_context)
        precision = pick_dtype(dtype, self.device, a.stored_in_fp8)
        warn_if_slow(precision, self.device)
        self.dtype = dtype_of(precision, self.device)
        self.facts = CheckpointFacts(a.vocab_size, a.context_length, a.is_classifier)
        of = Checkpoint(checkpoint, dtype, max_context, max_batch_tokens)
        self._computation, pool = set_up(self._leader, of, query_cache_bytes, resources or ServerResources())
        self._budget = max_batch_tokens
        self._longrope: LongropeTables | None = None
        if a.original_context is not None:
            self._longrope = LongropeTables(a.original_context, second=a.context_length)
        self._prefix_cache = PrefixCache(pool.pages, pool.reserve, caching=query_cache_bytes != 0)
        ranks = self._leader.rank.shard.ranks
        log.info(
            "%s decoder on %s%s in %s by %s; sequences of at most %d tokens, forwards of at most %d; the pool "
            "holds %d tokens, up to %d of them for calls of several forwards",
            a.family.name, self.device, f", the first of {ranks} ranks," if ranks > 1 else "", precision,
            type(self.runner).__name__, a.context_length, max_batch_tokens, pool.pages * PAGE, pool.reserve * PAGE,
        )  # fmt: skip

    @property
    def runner(self) -> ForwardRunner:
        """What runs forwards in this process."""
        return self._computation.runner

    @runner.setter
    def runner(self, runner: ForwardRunner) -> None:
        self.compute_with(replace(self._computation, runner=runner))

    def compute_with(self, computation: Computation) -> None:
        """Compute with something else, on this rank alone: for measurements and tests."""
        self._computation = computation
        self._leader = OneRank(self.device)
        self._leader.rank.held[PLACE] = computation

    def close(self) -> None:
        """End the other ranks, if there are any."""
        self._leader.close()

    def plan(self) -> ScoringPlan:
        """A new batch to form."""
        return ScoringPlan(self._prefix_cache, self._budget)

    def score(self, requests: Sequence[ScoreRequest]) -> tuple[list[Scores | RequestError], BatchStats]:
        """Score requests together. An answer that is not finite fails its own request alone."""
        return self.submit(requests).result()

    @torch.inference_mode()
    def submit(self, requests: Sequence[ScoreRequest]) -> PendingScores:
        """Pack and launch a batch. On a CUDA device this does not wait for it."""
        try:
            # Any thread may call this, and the current CUDA device is a thread's own.
            with torch.cuda.device(-1 if self.device.index is None else self.device.index):
                return self._launch(requests, self._pack([request.prompt for request in requests]))
        except Exception:
            # The cache may list keys and values that were never written.
            self._prefix_cache.clear()
            raise

    def prompt(self, prompt: MultiItemPrompt) -> MultiItemPrompt:
        """What is computed for a validated prompt."""
        return prompt if self._longrope is None else self._longrope.of(prompt)

    def _pack(self, prompts: Sequence[MultiItemPrompt]) -> Batch:
        return pack(prompts, self._budget, self._prefix_cache, self._longrope)

    def _launch(self, requests: Sequence[ScoreRequest], batch: Batch) -> PendingScores:
        work = partial(compute, forwards=batch.forwards, requests=requests)
        results = self._leader.do(work)
        flat = [result.values.flatten() for result in results]
        host, copy_done = self._to_host(flat[0] if len(flat) == 1 else torch.cat(flat))
        shapes = [
            (result.members, result.values.shape[1] if result.values.ndim == 2 else None)
            for result in results
        ]
        return PendingScores(requests, batch, host, shapes, copy_done, self.facts.is_classifier)

    def _to_host(self, results: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        if self.device.type != "cuda":
            return results, None
        host = download(results)
        copy_done = torch.cuda.Event()
        copy_done.record()
        return host, copy_done
