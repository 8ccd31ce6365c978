"""The scorer: a batch of requests in, scores out, in as few prefill-only forwards as the token budget allows."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import torch

from hiscore.batching.batched_model import LaunchedSlice
from hiscore.device.copies import PinnedArrays, download
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parallel.rank import Leader
from hiscore.prefill.interface import ForwardRunner, launch_all
from hiscore.scoring.computation import PLACE, Computation, compute
from hiscore.scoring.packing.batch_plan import ScoringPlan
from hiscore.scoring.packing.packing import Batch
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.results.head_results import HeadResult
from hiscore.scoring.results.pending_scores import BatchStats, PendingScores, Scores
from hiscore.scoring.results.readout_plan import ReadoutPlan


@dataclass(frozen=True)
class Packing(ABC):
    """The way from prompts to forwards of `budget` tokens: items share their query, or are pairs with it."""

    budget: int
    cache: QueryCache

    def plan(self) -> ScoringPlan:
        """Make a new batch to form."""
        return ScoringPlan(self.cache, self.budget)

    @abstractmethod
    def prompt(self, prompt: MultiItemPrompt) -> MultiItemPrompt:
        """Turn a validated prompt into the one that is computed."""

    @abstractmethod
    def pack(self, prompts: Sequence[MultiItemPrompt]) -> Batch: ...


class Scorer:
    def __init__(
        self, computation: Computation, facts: CheckpointFacts, packing: Packing, leader: Leader | None = None
    ) -> None:
        """Join the parts of a scorer; `leader` leads the ranks that hold computations, if there are several."""
        self.computation, self.facts, self.packing = computation, facts, packing
        self.device = computation.device
        if leader is None:
            leader = Leader(self.device)
            leader.rank.held[PLACE] = computation
        self._leader = leader

    @property
    def runner(self) -> ForwardRunner:
        return self.computation.runner

    def close(self) -> None:
        self._leader.close()

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
        """The tokens of a batch that may run between two slices of another; 0: none is launched in slices."""
        return self.runner.between

    @torch.inference_mode()
    def in_slices(self, requests: Sequence[ScoreRequest]) -> Iterator[LaunchedSlice | PendingScores]:
        """Pack a batch and launch it, a slice at each step, on any thread; the last step gives the scores.

        Until then other batches may be launched that cost no more than `between`, by the prices of
        `Packing.plan`.
        """
        self._use_device()
        plans = [ReadoutPlan.of(request, self.facts.is_classifier) for request in requests]
        try:
            batch = self.packing.pack([request.prompt for request in requests])
            slices = self.runner.slices(batch.forwards[0]) if self.between and len(batch.forwards) == 1 else 1
            if slices == 1:
                work = partial(compute, forwards=batch.forwards, plans=plans)
                pending = self._pending(plans, batch, self._leader.do(work))
            else:
                (forward,) = batch.forwards
                computing = self.runner.in_slices(forward, PinnedArrays(self.device))
                with self.packing.cache.held(), closing(computing):
                    for left in range(slices - 1, 0, -1):
                        next(computing)
                        yield LaunchedSlice(left, self._wait())
                        self._use_device()
                    results = self.computation.read_out(launch_all(computing), [forward], plans)
                    pending = self._pending(plans, batch, results)
        except BaseException:
            # The cache may list keys and values that were never written.
            self.packing.cache.clear()
            raise
        yield pending

    def _pending(
        self, plans: Sequence[ReadoutPlan], batch: Batch, results: Sequence[HeadResult]
    ) -> PendingScores:
        flat = [result.values.flatten() for result in results]
        host = download(flat[0] if len(flat) == 1 else torch.cat(flat))
        shapes = [
            (result.members, result.values.shape[1] if result.values.ndim == 2 else None)
            for result in results
        ]
        return PendingScores(plans, batch, host, shapes, self._wait())

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
