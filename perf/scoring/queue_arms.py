"""Arms of mixed_lengths: orders of the queue and paces of launches, and what was done under each."""

import gc
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from hiscore.arrays import Float64
from hiscore.batching import batcher as batcher_module
from hiscore.batching import waiting
from hiscore.batching.batched_model import BatchLimits, Job, LaunchedBatch, LaunchedSlice
from hiscore.batching.batcher import Batcher
from hiscore.batching.launch_pace import LaunchPace
from hiscore.batching.request_order import OpenBatch, RequestOrder
from hiscore.device.copies import PinnedArray, Uploads
from hiscore.scoring import decoder_scorer
from hiscore.scoring.batched_scorer import BatchedScorer
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.pending_scores import BatchStats, PendingScores
from hiscore.scoring.scorer import Scorer

PARTS: dict[str, list[tuple[Any, str]]] = {
    "pack": [(decoder_scorer, "pack")],
    "upload": [(PinnedArray, "copy_to"), (PinnedArray, "to"), (Uploads, "_send")],
    "launch": [(Batcher, "_try_launch")],
    "collect": [(PendingScores, "_read")],
}
"""Functions that do each part. "launch" holds the two before it, which are taken out again."""


@contextmanager
def timed(seconds: defaultdict[str, float]) -> Iterator[None]:
    """Add up the seconds of each part inside, on whatever thread."""
    inside: defaultdict[str, float] = defaultdict(float)
    with ExitStack() as stack:
        for part, places in PARTS.items():
            for owner, name in places:
                timed_one = _timed(getattr(owner, name), part, inside)
                stack.enter_context(mock.patch.object(owner, name, timed_one))
        yield
    inside["launch"] -= inside["pack"] + inside["upload"]
    for part, spent in inside.items():
        seconds[part] += spent


def _timed(function: Callable[..., Any], part: str, seconds: defaultdict[str, float]) -> Callable[..., Any]:
    def measured(*arguments: Any) -> Any:
        begin = time.perf_counter()
        try:
            return function(*arguments)
        finally:
            seconds[part] += time.perf_counter() - begin

    return measured


class FirstCome(RequestOrder[Job]):
    """Whole calls as they come, up to a full batch."""

    def fill(self, batch: OpenBatch[Job]) -> None:
        used = 0
        for request in list(self):
            price = batch.price(request)
            if used and used + price > self._max_cost:
                return
            batch.take(request, max(price, self._max_cost), at_least_one=True)
            used += price
            self.remove(request)


class AtOnce(LaunchPace):
    """Never holds a batch back."""

    def due(self) -> float:
        return 0.0


class WithoutSlices(BatchedScorer):
    """Launches batches as a whole."""

    def __init__(self, scorer: Scorer, record: Callable[[BatchStats | None], None]) -> None:
        super().__init__(scorer, record)
        self.between = 0

    def launch(self, jobs: list[ScoreRequest]) -> Iterator[LaunchedBatch]:
        *_, launched = super().launch(jobs)
        assert not isinstance(launched, LaunchedSlice)
        yield launched


ARMS: dict[str, tuple[type[BatchedScorer], type[RequestOrder[Any]], type[LaunchPace]]] = {
    "queue order": (BatchedScorer, RequestOrder, LaunchPace),
    "without slices": (WithoutSlices, RequestOrder, LaunchPace),
    "first come": (WithoutSlices, FirstCome, AtOnce),
}
"""The scorer to the batcher, its order and its pace."""


@dataclass
class Arm:
    """Work of an arm in its windows.

    Attributes:
        took: Seconds of each call, by window.
        launch_s: Spent by the host in launches.
        answer_s: And in answers.
        parts: Seconds of the host by part: see `PARTS`.
    """

    took: list[Float64] = field(default_factory=list)
    forwards: int = 0
    tokens: int = 0
    launch_s: float = 0.0
    answer_s: float = 0.0
    parts: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))

    def count(self, stats: BatchStats | None) -> None:
        """A batch has been answered."""
        if stats:
            self.forwards += stats.forwards
            self.tokens += stats.tokens


@contextmanager
def serving(
    scorer: Scorer, limits: BatchLimits, arm: Arm, name: str = "queue order"
) -> Iterator[Batcher[ScoreRequest]]:
    """The scorer's batcher, with the order and the pace of an arm."""
    model, order, pace = ARMS[name]
    with (
        mock.patch.object(waiting, "RequestOrder", order),
        mock.patch.object(batcher_module, "LaunchPace", pace),
    ):
        batcher = Batcher(model(scorer, arm.count), limits)
    gc.collect()
    gc.freeze()  # as the model does after its start
    with timed(arm.parts):
        yield batcher
        batcher.close()
    gc.unfreeze()
    arm.launch_s += batcher.totals.launch_seconds
    arm.answer_s += batcher.totals.answer_seconds
