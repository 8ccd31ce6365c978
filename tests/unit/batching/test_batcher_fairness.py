"""The batcher's turns and its limit of total cost, with jobs that are lists of numbers, their own costs."""

import time
from collections.abc import Iterator, Sequence

import pytest

from hiscore.batching.batched_model import BatchLimits, Part, QueuedRequest
from hiscore.batching.batcher import Batcher
from hiscore.errors import Code, RequestError
from tests.support.batch_model import FOREVER, Batch, BatchModel, Caller

Job = tuple[int, ...]


class Model(BatchModel):
    def __init__(self, async_launch: bool) -> None:
        super().__init__(async_launch)
        self.splits = True
        self.joined: list[Job] = []

    def cost(self, job: Job) -> int:
        return sum(job)

    def plan(self) -> "Plan":
        return Plan(self.splits)

    def join(self, job: Job, answers: Sequence[object]) -> object:
        self.joined.append(job)
        return super().join(job, answers)

    def launch(self, jobs: list[Job]) -> Iterator[Batch]:
        self.note_launch(jobs)
        yield Batch(self, jobs)

    def answers_of(self, jobs: list[Job]) -> Sequence[object]:
        return [RequestError("unlucky") if 13 in job else sum(job) for job in jobs]

    def on_failure(self, error: Exception) -> None:
        raise AssertionError("no batch fails as a whole")

    def batcher(
        self, max_total_cost: float = 1_000, max_queue: int = 100, in_flight: int = 1
    ) -> Batcher[Job]:
        return Batcher(self, BatchLimits(10, max_queue, max_total_cost, max_in_flight=in_flight))

    def request(self, name: str, *job: int) -> QueuedRequest[Job]:
        return QueuedRequest(job, Caller(self, name), FOREVER, since=0.0)

    def lacks_room(self, batcher: Batcher[Job], *requests: QueuedRequest[Job]) -> list[str]:
        """Submit requests together; returns the names of those for which there is no room."""
        batcher.submit(requests)
        return self.refused(*(request.reply_to.name for request in requests))


class Plan:
    """Parts are numbers of a job."""

    def __init__(self, splits: bool) -> None:
        self.splits = splits

    def price(self, job: Job, done: int) -> int:
        return sum(job[done:])

    def take(self, job: Job, done: int, room: int, at_least_one: bool) -> Part[Job] | None:
        if not self.splits:
            return Part(job, sum(job)) if at_least_one or sum(job) <= room else None
        if job[done] > room and not at_least_one:
            return None
        last = done + 1 == len(job)
        return Part((job[done],), job[done], None if last else done + 1, sum(job[done + 1 :]))


@pytest.fixture(params=[True, False], ids=["async", "own-thread"])
def model(request: pytest.FixtureRequest) -> Iterator[Model]:
    model = Model(request.param)
    yield model
    model.go.release(100)
    assert model.answered_twice == []


@pytest.mark.parametrize("split", [True, False], ids=["split", "control"])
def test_a_small_call_goes_in_between(model: Model, split: bool) -> None:
    """The control: a large job that stays whole is launched as a whole, before all that comes later."""
    model.splits = split
    batcher = model.batcher()
    batcher.submit([model.request("large", 10, 9, 8, 7)])
    assert model.wait(lambda: len(model.launched) == 1)
    batcher.submit([model.request("small", 5)])
    model.go.release(100)
    batcher.close()
    sizes = [[sum(job) for job in jobs] for jobs in model.launched]
    # What is left of the large one fits no batch, so it is the small one's turn.
    assert sizes == ([[10], [5], [9], [8], [7]] if split else [[34], [5]])
    assert model.answers["large"] == ([10, 9, 8, 7] if split else 34)


def test_of_large_calls_the_one_with_least_left_is_finished_first(model: Model) -> None:
    """Taking turns would end the first as late as the last."""
    batcher = model.batcher()
    batcher.submit([model.request("a", 10, 10, 10), model.request("b", 9, 9, 9)])
    model.go.release(100)
    batcher.close()
    assert [jobs[0][0] for jobs in model.launched] == [10, 10, 10, 9, 9, 9]


def test_a_request_of_several_parts_has_waited_once(model: Model) -> None:
    batcher = model.batcher()
    request = model.request("split", 9, 9, 9)
    request.since = time.monotonic() - 1_000.0
    model.go.release(3)
    batcher.submit([request])
    batcher.close()
    assert len(model.launched) == 3
    assert 1_000.0 <= batcher.totals.queue_seconds < 2_000.0


def test_a_part_that_fails_ends_its_call_alone_and_the_rest_is_dropped(model: Model) -> None:
    batcher = model.batcher()
    batcher.submit([model.request("bad", 10, 13, 8, 7), model.request("good", 9, 6)])
    model.go.release(100)
    batcher.close()
    assert model.answers["good"] == [9, 6]
    assert isinstance(model.answers["bad"], RequestError)
    assert (7,) not in [job for jobs in model.launched for job in jobs]


def test_what_has_failed_is_not_joined(model: Model) -> None:
    """Though its last part was launched before the first one failed; the control is joined."""
    batcher = model.batcher(in_flight=2)
    for launched, name, job in ((2, "bad", (13, 8)), (4, "good", (9, 6))):
        batcher.submit([model.request(name, *job)])
        assert model.wait(lambda: len(model.launched) == launched)  # noqa: B023
        model.go.release(2)
    batcher.close()
    assert isinstance(model.answers["bad"], RequestError)
    assert model.joined == [(9, 6)]


def test_a_caller_that_goes_between_parts_is_dropped(model: Model) -> None:
    batcher = model.batcher()
    batcher.submit([model.request("large", 10, 9, 8)])
    assert model.wait(lambda: len(model.launched) == 1)
    model.cancelled.add("large")
    model.go.release(100)
    batcher.close()
    answer = model.answers["large"]
    assert isinstance(answer, RequestError)
    assert answer.code is Code.CANCELLED
    assert model.launched == [[(10,)]]


def test_a_started_request_is_finished_after_its_deadline(model: Model) -> None:
    batcher = model.batcher()
    request = model.request("large", 10, 9, 8)
    batcher.submit([request])
    assert model.wait(lambda: len(model.launched) == 1)
    request.deadline = 0.0
    model.go.release(100)
    batcher.close()
    assert model.answers["large"] == [10, 9, 8]


def test_admission_by_cost_counts_what_waits_and_what_is_computed(model: Model) -> None:
    batcher = model.batcher(max_total_cost=25)

    # A single call may cost more than the limit for all; nothing else is accepted with it.
    assert model.lacks_room(batcher, model.request("huge", 10, 10, 10)) == []
    assert model.lacks_room(batcher, model.request("no", 1)) == ["no"]
    model.go.release(3)
    assert model.wait(lambda: "huge" in model.answers)
    some = [model.request(name, cost) for name, cost in (("a", 10), ("b", 10), ("c", 10), ("d", 5))]
    assert model.lacks_room(batcher, *some) == ["c"]
    model.go.release(1)
    assert model.wait(lambda: "a" in model.answers)
    assert model.lacks_room(batcher, model.request("e", 11), model.request("f", 10)) == ["e"]
    model.go.release(100)
    batcher.close()
    served = [name for name, answer in model.answers.items() if not isinstance(answer, RequestError)]
    assert sorted(served) == ["a", "b", "d", "f", "huge"]


def test_between_its_parts_a_request_takes_no_place_in_the_queue(model: Model) -> None:
    batcher = model.batcher(max_queue=1)
    batcher.submit([model.request("large", 10, 9)])
    assert model.wait(lambda: len(model.launched) == 1)
    # The large one waits for its second part, but it has been started.
    assert model.lacks_room(batcher, model.request("a", 5), model.request("b", 5)) == ["b"]
    model.go.release(100)
    batcher.close()
    assert model.launched == [[(10,)], [(9,)], [(5,)]]
