"""Requests that wait: what is kept of those that have started, and the places of those that are dropped."""

import gc
import math
from pathlib import Path
from typing import Any
from weakref import ref

import pytest

from hiscore.batching import request_order
from hiscore.batching.batched_model import BatchLimits, BatchPlan, QueuedRequest
from hiscore.batching.totals import Totals
from hiscore.batching.waiting import WaitingRequests
from hiscore.server.load_board import LoadBoard

SOON, LATE = 1e12, 2e12
"""Deadlines, neither of which passes."""
ROUNDS = 200


class Model:
    """Each job is a batch."""

    def __init__(self, between: int) -> None:
        self.between = between

    def plan(self) -> BatchPlan[int]:
        return BatchPlan(lambda job: job)


@pytest.mark.slow
@pytest.mark.parametrize("spare", [request_order.SPARE, math.inf])
@pytest.mark.parametrize("between", [0, 1], ids=["whole", "slices"])
def test_behind_one_that_waits_those_that_have_started_are_freed(
    between: int, spare: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with an early deadline always waits and hides later ones. The control never drops the others."""
    monkeypatch.setattr(request_order, "SPARE", spare)
    model: Any = Model(between)
    waiting: WaitingRequests[int] = WaitingRequests(model, BatchLimits(8, 10), Totals(), LoadBoard())
    seen = []

    def admit(deadline: float) -> None:
        request = QueuedRequest(8, model, deadline)
        assert waiting.admit(request, 8, at_once=False, busy=True)
        seen.append(ref(request))

    admit(SOON)
    for index in range(ROUNDS):
        admit(SOON if index % 2 else LATE)
        ((request, _),), _, dropped = waiting.next_batch([])
        assert not dropped
        waiting.answered(request)
        del request
    gc.collect()
    kept = sum(request() is not None for request in seen)
    assert len(waiting) == 1
    assert (kept < ROUNDS // 2) == (spare < math.inf)


def test_others_are_told_of_what_runs_alone(tmp_path: Path) -> None:
    model: Any = Model(0)
    own, other = LoadBoard(tmp_path), LoadBoard(tmp_path)
    waiting: WaitingRequests[int] = WaitingRequests(model, BatchLimits(8, 1), Totals(), own)
    other.publish(1)
    assert own.is_next
    waiting.alone = 2
    waiting.publish_load()
    assert other.is_next
    assert not own.is_next


@pytest.mark.parametrize("deadline", [0.0, LATE], ids=["late", "cancelled"])
def test_a_request_that_is_dropped_leaves_its_place_to_another(deadline: float) -> None:
    model: Any = Model(0)
    waiting: WaitingRequests[int] = WaitingRequests(model, BatchLimits(8, 1), Totals(), LoadBoard())
    first, second = QueuedRequest(8, model, deadline), QueuedRequest(8, model, LATE)
    assert waiting.admit(first, 8, at_once=False, busy=True)
    assert not waiting.admit(second, 8, at_once=False, busy=True), "the queue has one place"
    parts, _, ((dropped, _),) = waiting.next_batch([] if deadline == 0.0 else [first])
    assert dropped is first
    assert not parts
    waiting.answered(first)
    assert waiting.admit(second, 8, at_once=False, busy=True)
