"""Time that the host spends on a scorer's batches, by part: pack, upload, launch, collect."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

from hiscore.device import PinnedArray, Uploads
from hiscore.scoring import scorer
from hiscore.scoring.batched_scorer import BatchedScorer
from hiscore.scoring.pending_scores import PendingScores

PARTS: dict[str, list[tuple[Any, str]]] = {
    "pack": [(scorer, "pack")],
    "upload": [(PinnedArray, "copy_to"), (PinnedArray, "to"), (Uploads, "_send")],
    "launch": [(BatchedScorer, "launch")],
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
