"""The engine's queue: batches by cost, in order, never more in flight than its depth, everyone answered once."""

import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from hiscore.errors import Code, RequestError
from hiscore.serving import batcher as engine_module
from hiscore.serving.batcher import Engine
from hiscore.serving.tickets import Ticket

FOREVER = float("inf")


class Device:
    """Jobs are numbers, their own cost; the test decides when a batch is done."""

    def __init__(self, inline: bool) -> None:
        self.inline = inline
        self.launched: list[list[int]] = []
        self.done: list[threading.Semaphore] = []
        self.answers: dict[int, object] = {}
        self.alone: set[int] = set()
        self.gone: set[int] = set()
        self.counted: list[list[int]] = []
        self.failures: list[Exception] = []
        self.changed = threading.Condition()

    def launch(self, jobs: list[int]) -> "Batch":
        if 13 in jobs:
            raise ValueError("unlucky launch")
        batch = Batch(self, jobs)
        with self.changed:
            self.launched.append(jobs)
            self.done.append(batch.done)
            self.changed.notify_all()
        return batch

    def answer(self, ticket: Ticket[int], answer: object) -> None:
        assert ticket.job not in self.answers
        with self.changed:
            self.answers[ticket.job] = answer
            self.changed.notify_all()

    def engine(self, budget: int = 10, max_queue: int = 100, depth: int = 2) -> Engine[int]:
        return Engine(
            self.launch,
            self.answer,
            self.failures.append,
            lambda ticket: ticket.job in self.gone,
            lambda job: job,
            budget,
            max_queue,
            self.inline,
            depth,
        )

    def wait(self, condition) -> bool:
        with self.changed:
            return self.changed.wait_for(condition, timeout=5)


class Batch:
    def __init__(self, device: Device, jobs: list[int]) -> None:
        self.device, self.jobs = device, jobs
        self.done = threading.Semaphore(0)

    def finish(self) -> Sequence[object]:
        assert self.done.acquire(timeout=10)
        if 17 in self.jobs:
            raise ValueError("unlucky finish")
        return [10 * job for job in self.jobs]

    def count(self) -> None:
        # Everyone of the batch has an answer by now.
        assert set(self.jobs) <= set(self.device.answers) | self.device.alone
        self.device.counted.append(self.jobs)


@pytest.fixture(params=[True, False], ids=["inline", "own-thread"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = Device(request.param)
    yield device
    for done in device.done:
        done.release()


def submit(engine: Engine[int], *jobs: int, deadline: float = FOREVER) -> list[int]:
    """Submit jobs together; returns those that are refused."""
    return [ticket.job for ticket in engine.submit([Ticket(job, None, deadline) for job in jobs])]


def test_what_waits_becomes_batches_within_the_budget(device: Device) -> None:
    engine = device.engine(depth=1)
    submit(engine, 1)
    assert device.wait(lambda: device.launched == [[1]])
    submit(engine, 4, 5, 3, 25, 2)  # 4 + 5 + 3 is over 10; 25 alone is as well, and goes alone
    for batches in ([4, 5], [3], [25], [2]):
        device.done[-1].release()
        assert device.wait(lambda batches=batches: device.launched[-1] == batches)
    device.done[-1].release()
    engine.close()
    assert device.answers == {job: 10 * job for job in (1, 2, 3, 4, 5, 25)}
    assert device.counted == device.launched
    assert device.failures == []


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_no_more_than_its_depth_is_in_flight(device: Device, depth: int) -> None:
    engine = device.engine(budget=1, depth=depth)
    submit(engine, *range(1, 7))
    for done in range(6):
        in_flight = min(done + depth, 6)
        assert device.wait(lambda in_flight=in_flight: len(device.launched) == in_flight)
        time.sleep(0.02)  # one too many would be launched by now
        assert len(device.launched) == in_flight
        device.done[done].release()
    engine.close()
    assert device.launched == [[job] for job in range(1, 7)]


def test_a_full_queue_refuses_and_forgets_nobody(device: Device) -> None:
    engine = device.engine(budget=1, max_queue=2, depth=1)
    submit(engine, 1)
    assert device.wait(lambda: device.launched == [[1]])
    assert submit(engine, 2, 3) == []
    assert submit(engine, 4, 6) == [4, 6]
    device.done[0].release()
    assert device.wait(lambda: device.launched[-1] == [2])
    submit(engine, 5)  # there is room again
    for place in (1, 2, 3):
        assert device.wait(lambda place=place: len(device.done) > place)
        device.done[place].release()
    engine.close()
    assert sorted(device.answers) == [1, 2, 3, 5]


def test_what_waited_too_long_is_answered_and_never_launched(device: Device) -> None:
    engine = device.engine(budget=1, depth=1)
    submit(engine, 1)
    assert device.wait(lambda: device.launched == [[1]])
    submit(engine, 2, deadline=time.monotonic() + 0.01)
    submit(engine, 3)
    time.sleep(0.02)
    device.done[0].release()
    assert device.wait(lambda: device.launched[-1] == [3])
    device.done[1].release()
    engine.close()
    assert device.launched == [[1], [3]]
    late = device.answers[2]
    assert isinstance(late, RequestError)
    assert late.code is Code.UNAVAILABLE
    assert "Request timeout expired" in late.message


def test_whose_caller_has_gone_is_never_launched(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "ASK_AFTER_S", 0.0)
    engine = device.engine(budget=1, depth=1)
    submit(engine, 1)
    assert device.wait(lambda: device.launched == [[1]])
    submit(engine, 2, 3)
    device.gone = {2}
    device.done[0].release()
    assert device.wait(lambda: device.launched[-1] == [3])
    device.done[1].release()
    engine.close()
    assert device.launched == [[1], [3]]
    assert device.answers[2].code is Code.CANCELLED


@pytest.mark.parametrize(("unlucky", "where"), [(13, "launch"), (17, "finish")])
def test_a_batch_that_fails_takes_only_its_own_calls_along(device: Device, unlucky: int, where: str) -> None:
    engine = device.engine(budget=20, depth=1)
    submit(engine, 1)
    assert device.wait(lambda: device.launched == [[1]])
    submit(engine, 2, unlucky, 19)
    device.done[0].release()
    assert device.wait(lambda: 1 in device.answers)
    for place in range(1, 3):
        if device.wait(lambda place=place: len(device.done) > place or 19 in device.answers):
            for done in device.done:
                done.release()
    engine.close()
    for job in (2, unlucky):
        error = device.answers[job]
        assert isinstance(error, RequestError)
        assert error.code is Code.INTERNAL
        assert "unlucky" not in error.message  # what happened inside stays there
    assert (device.answers[1], device.answers[19]) == (10, 190)
    assert [str(error) for error in device.failures] == [f"unlucky {where}"]
    assert device.counted == [[1], [19]]


def test_close_runs_what_waits(device: Device) -> None:
    engine = device.engine(budget=1, depth=1)
    submit(engine, 1, 2, 3)
    closing = threading.Thread(target=engine.close)
    closing.start()
    for place in range(3):
        assert device.wait(lambda place=place: len(device.done) > place)
        assert closing.is_alive()
        device.done[place].release()
    closing.join(5)
    assert not closing.is_alive()
    assert sorted(device.answers) == [1, 2, 3]


def test_a_call_that_finds_nothing_at_work_is_run_on_the_spot() -> None:
    device = Device(inline=True)
    engine = device.engine(budget=100, depth=1)
    device.alone = {1, 13, 17}

    def run_alone(job: int) -> object:
        until_idle()
        threading.Timer(0.01, lambda: device.done[-1].release()).start()
        return engine.run_alone(job)

    def until_idle() -> None:
        while engine._in_flight:
            time.sleep(0.001)

    submit(engine, 5)
    assert engine.run_alone(1) is None  # another is in flight
    device.done[0].release()
    assert device.wait(lambda: 5 in device.answers)
    assert run_alone(1) == 10
    until_idle()
    assert engine.run_alone(26) is None  # too large to keep others waiting for
    for unlucky in (13, 17):
        assert isinstance(run_alone(unlucky), RequestError)
    engine.close()
    assert device.answers == {5: 50}
    assert device.counted == [[5], [1]]
    assert len(device.failures) == 2


def test_an_engine_with_a_thread_of_its_own_runs_nothing_on_the_spot() -> None:
    device = Device(inline=False)
    engine = device.engine()
    assert engine.run_alone(1) is None
    engine.close()
    assert device.launched == []
