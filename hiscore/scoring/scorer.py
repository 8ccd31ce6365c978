"""The scorer: a batch of requests in, scores out, in as few prefill-only forwards as the token budget allows."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from hiscore.device import PinnedArrays, download
from hiscore.errors import RequestError
from hiscore.models.config import read_architecture
from hiscore.models.server_resources import ServerResources
from hiscore.models.support import CheckpointFacts
from hiscore.parallel.rank import Leader, OneRank
from hiscore.prefill.interface import ForwardRunner, launch_all
from hiscore.scoring.batch_plan import ScoringPlan
from hiscore.scoring.computation import PLACE, Checkpoint, Computation, compute, set_up
from hiscore.scoring.head_results import HeadResult
from hiscore.scoring.longrope import LongropeTables
from hiscore.scoring.packing import Batch, pack
from hiscore.scoring.pending_scores import BatchStats, PendingScores, Scores
from hiscore.scoring.precision import dtype_of, pick_dtype, use_device, warn_if_slow
from hiscore.scoring.prefix_cache import PAGE, PrefixCache
from hiscore.scoring.request import MultiItemPrompt, ScoreRequest
from hiscore.serving.batched_model import LaunchedSlice

log = logging.getLogger(__name__)


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
        self.dtype = dtype_of(precision)
        self.facts = CheckpointFacts(a.vocab_size, a.context_length, a.is_classifier)
        of = Checkpoint(checkpoint, dtype, max_context, max_batch_tokens)
        self._computation, pool = set_up(self._leader, of, query_cache_bytes, resources or ServerResources())
        self._budget = max_batch_tokens
        original = a.original_context
        self._longrope = None if original is None else LongropeTables(original, second=a.context_length)
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

    def submit(self, requests: Sequence[ScoreRequest]) -> PendingScores:
        """Pack and launch a batch. On a CUDA device this does not wait for it."""
        *_, pending = self.in_slices(requests)
        assert isinstance(pending, PendingScores)
        return pending

    @property
    def between(self) -> int:
        """Tokens of a batch that may be computed between two slices of another; 0: none is launched in slices."""
        return self.runner.between

    @torch.inference_mode()
    def in_slices(self, requests: Sequence[ScoreRequest]) -> Iterator[LaunchedSlice | PendingScores]:
        """Pack a batch and launch it, a slice at each step, the last of which gives the scores.

        Until then other batches may be launched that cost no more than `between`, by the prices of `plan`. Any
        thread may take a step.
        """
        self._use_device()
        try:
            batch = self._pack([request.prompt for request in requests])
            slices = self.runner.slices(batch.forwards[0]) if self.between and len(batch.forwards) == 1 else 1
            if slices == 1:
                work = partial(compute, forwards=batch.forwards, requests=requests)
                pending = self._pending(requests, batch, self._leader.do(work))
            else:
                (forward,) = batch.forwards
                computing = self.runner.in_slices(forward, PinnedArrays(self.device))
                with self._prefix_cache.held(), closing(computing):
                    for left in range(slices - 1, 0, -1):
                        next(computing)
                        yield LaunchedSlice(left, self._wait())
                        self._use_device()
                    results = self._computation.read_out(launch_all(computing), [forward], requests)
                    pending = self._pending(requests, batch, results)
        except BaseException:
            # The cache may list keys and values that were never written.
            self._prefix_cache.clear()
            raise
        yield pending

    def prompt(self, prompt: MultiItemPrompt) -> MultiItemPrompt:
        """What is computed for a validated prompt."""
        return prompt if self._longrope is None else self._longrope.of(prompt)

    def _pack(self, prompts: Sequence[MultiItemPrompt]) -> Batch:
        return pack(prompts, self._budget, self._prefix_cache, self._longrope)

    def _pending(
        self, requests: Sequence[ScoreRequest], batch: Batch, results: Sequence[HeadResult]
    ) -> PendingScores:
        flat = [result.values.flatten() for result in results]
        host = download(flat[0] if len(flat) == 1 else torch.cat(flat))
        shapes = [
            (result.members, result.values.shape[1] if result.values.ndim == 2 else None)
            for result in results
        ]
        return PendingScores(requests, batch, host, shapes, self._wait(), self.facts.is_classifier)

    def _use_device(self) -> None:
        """Make the GPU current, which each thread has to do for itself."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def _wait(self) -> Callable[[], None]:
        """Make a function that returns when the device has come this far; a CPU has already."""
        if self.device.type != "cuda":
            return lambda: None
        reached = torch.cuda.Event()
        reached.record()
        return reached.synchronize
