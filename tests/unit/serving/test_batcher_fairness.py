"""The engine's turns and its limit of cost, with jobs that are lists of numbers, their own costs."""

import threading
from collections.abc import Iterator, Sequence

import pytest

from hiscore.errors import Code, RequestError
from hiscore.serving.batcher import Engine
from hiscore.serving.tickets import Ticket

Job = tuple[int, ...]


class Worker:
    """Computes a batch whenever the test says so."""

    def __init__(self) -> None:
        self.launched: list[list[Job]] = []
        self.answers: dict[str, object] = {}
        self.go = threading.Semaphore(0)
        self.changed = threading.Condition()
        self.gone: set[str] = set()

    def launch(self, jobs: list[Job]) -> "Batch":
        with self.changed:
            self.launched.append(jobs)
            self.changed.notify_all()
        return Batch(self, jobs)

    def answer(self, ticket: Ticket[Job], answer: object) -> None:
        with self.changed:
            assert ticket.reply_to not in self.answers, "answered twice"
            self.answers[ticket.reply_to] = answer
            self.changed.notify_all()

    def wait(self, condition) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, timeout=5)


class Batch:
    def __init__(self, worker: Worker, jobs: list[Job]) -> None:
        self.worker, self.jobs = worker, jobs

    def finish(self) -> Sequence[object]:
        assert self.worker.go.acquire(timeout=10)
        return [RequestError("unlucky") if 13 in job else sum(job) for job in self.jobs]

    def count(self) -> None:
        """Nothing to count."""


@pytest.fixture(params=[True, False], ids=["inline", "own-thread"])
def inline(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture
def worker() -> Iterator[Worker]:
    worker = Worker()
    yield worker
    worker.go.release(100)


def engine(worker: Worker, inline: bool, split: bool = True, max_cost: float = 1_000) -> Engine[Job]:
    return Engine(
        worker.launch,
        worker.answer,
        lambda error: None,
        lambda ticket: ticket.reply_to in worker.gone,
        sum,
        budget=10,
        max_queue=100,
        inline=inline,
        depth=1,
        max_cost=max_cost,
        split=(lambda job: [(part,) for part in job]) if split else (lambda job: [job]),
        join=lambda job, answers: list(answers),
    )


def ticket(name: str, *job: int) -> Ticket[Job]:
    return Ticket(job, name, float("inf"), since=0.0)


@pytest.mark.parametrize(("split", "before"), [(True, 2), (False, 1)], ids=["split", "control"])
def test_a_small_call_goes_in_between(worker: Worker, inline: bool, split: bool, before: int) -> None:
    """The control: a large job that stays whole is launched as a whole, before all that comes later."""
    made = engine(worker, inline, split)
    made.submit([ticket("large", 10, 9, 8, 7)])
    assert worker.wait(lambda: len(worker.launched) == 1)
    made.submit([ticket("small", 5)])
    worker.go.release(100)
    assert worker.wait(lambda: len(worker.answers) == 2)
    made.close()
    sizes = [[sum(job) for job in jobs] for jobs in worker.launched]
    # Its second part stood before the small call in the queue already; each has one part in a round.
    assert sizes == ([[10], [9], [5], [8], [7]] if split else [[34], [5]])
    assert sizes.index([5]) == before
    assert worker.answers["large"] == ([10, 9, 8, 7] if split else 34)


def test_large_calls_take_turns(worker: Worker, inline: bool) -> None:
    made = engine(worker, inline)
    made.submit([ticket("a", 10, 10, 10), ticket("b", 9, 9, 9)])
    worker.go.release(100)
    assert worker.wait(lambda: len(worker.answers) == 2)
    made.close()
    assert [jobs[0][0] for jobs in worker.launched] == [10, 9, 10, 9, 10, 9]


def test_a_part_that_fails_ends_its_call_alone_and_the_rest_is_dropped(worker: Worker, inline: bool) -> None:
    made = engine(worker, inline)
    made.submit([ticket("bad", 10, 13, 8, 7), ticket("good", 9, 6)])
    worker.go.release(100)
    assert worker.wait(lambda: len(worker.answers) == 2)
    made.close()
    assert worker.answers["good"] == [9, 6]
    assert isinstance(worker.answers["bad"], RequestError)
    assert (7,) not in [job for jobs in worker.launched for job in jobs]


def test_a_caller_that_goes_between_parts_is_served_no_more(worker: Worker, inline: bool) -> None:
    made = engine(worker, inline)
    made.submit([ticket("large", 10, 9, 8)])
    assert worker.wait(lambda: len(worker.launched) == 1)
    worker.gone.add("large")
    worker.go.release(100)
    assert worker.wait(lambda: len(worker.answers) == 1)
    made.close()
    answer = worker.answers["large"]
    assert isinstance(answer, RequestError)
    assert answer.code is Code.CANCELLED
    assert worker.launched == [[(10,)]]


def test_admission_by_cost_counts_what_waits_and_what_is_computed(worker: Worker, inline: bool) -> None:
    made = engine(worker, inline, max_cost=25)

    def refused(*tickets: Ticket[Job]) -> list[str]:
        return [each.reply_to for each in made.submit(tickets)]

    # A single call may cost more than all together may; nothing else is let in beside it.
    assert refused(ticket("huge", 10, 10, 10)) == []
    assert refused(ticket("no", 1)) == ["no"]
    worker.go.release(3)
    assert worker.wait(lambda: "huge" in worker.answers)
    assert refused(ticket("a", 10), ticket("b", 10), ticket("c", 10), ticket("d", 5)) == ["c"]
    worker.go.release(1)
    assert worker.wait(lambda: "a" in worker.answers)
    assert refused(ticket("e", 11), ticket("f", 10)) == ["e"]
    worker.go.release(100)
    made.close()
    assert set(worker.answers) == {"huge", "a", "b", "d", "f"}
