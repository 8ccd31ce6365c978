"""The batcher's queue: batches by cost, in order, never too many in flight, every request answered once."""

import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial

import pytest

from hiscore.batching import waiting
from hiscore.batching.batched_model import BatchLimits, BatchPlan, Part
from hiscore.batching.batcher import Batcher
from hiscore.batching.launch_pace import LaunchPace
from hiscore.errors import Code, RequestError
from tests.support.batch_model import FOREVER, Batch, BatchModel
from tests.support.timeouts import TIMEOUT_S, wait_until

submit = BatchModel.submit
CANNOT_BE_JOINED, LOSES_ITS_ANSWER, MUTE = 801, 802, 803


class Plan(BatchPlan[int]):
    """One job has two parts."""

    def take(self, job: int, done: int, room: int, at_least_one: bool) -> Part[int] | None:
        if job == CANNOT_BE_JOINED:
            return Part(4, 4, None if done else 1, 4)
        return super().take(job, done, room, at_least_one)


class Device(BatchModel):
    """A model whose jobs are numbers, their own cost; the test decides when a batch is done."""

    def __init__(self, async_launch: bool) -> None:
        super().__init__(async_launch)
        self.done: list[threading.Semaphore] = []
        self.alone: set[int] = set()
        self.failures: list[Exception] = []
        self.may_launch = threading.Event()
        self.may_launch.set()

    def cost(self, job: int) -> int:
        return job

    def plan(self) -> BatchPlan[int]:
        return Plan(self.cost)

    def join(self, job: int, answers: Sequence[object]) -> object:
        assert (job, answers) == (CANNOT_BE_JOINED, [40, 40])
        raise ValueError("the parts do not fit together")

    def launch(self, jobs: list[int]) -> Iterator[Batch]:
        if 13 in jobs:
            raise ValueError("unlucky launch")
        done = threading.Semaphore(0)
        self.done.append(done)
        self.note_launch(jobs)
        assert self.may_launch.wait(TIMEOUT_S)
        yield CheckedBatch(self, jobs, partial(done.acquire, timeout=TIMEOUT_S))

    def answers_of(self, jobs: list[int]) -> Sequence[object]:
        if 17 in jobs:
            raise ValueError("unlucky finish")
        answers = super().answers_of(jobs)
        return answers[1:] if LOSES_ITS_ANSWER in jobs else answers

    def on_failure(self, error: Exception) -> None:
        self.failures.append(error)

    def batcher(
        self, max_cost: int = 10, max_queue: int = 100, in_flight: int = 2, max_alone: int = 0
    ) -> Batcher[int]:
        limits = BatchLimits(max_cost, max_queue, max_in_flight=in_flight, max_alone_cost=max_alone)
        return Batcher(self, limits)

    def busy(self, **limits: int) -> Batcher[int]:
        """A batcher of one batch at a time, which is that of job 1."""
        batcher = self.batcher(in_flight=1, **limits)
        submit(self, batcher, 1)
        assert self.wait(lambda: self.launched == [[1]])
        return batcher

    def finish(self, *batches: int) -> None:
        """Finish batches as they are launched, each named by its place among all."""
        for index in batches:
            assert self.wait(lambda index=index: len(self.done) > index)
            self.done[index].release()

    def finish_all(self) -> None:
        for done in self.done:
            done.release()

    def run_alone(self, batcher: Batcher[int], job: int) -> object:
        """Run a job on the spot; another thread finishes it 20 ms after its launch."""
        launched = len(self.done)

        def finish() -> None:
            if self.wait(lambda: len(self.done) > launched):
                time.sleep(0.02)
                self.done[-1].release()

        threading.Thread(target=finish, daemon=True).start()
        return batcher.run_alone(job)


class CheckedBatch(Batch):
    def count(self) -> None:
        # All callers of the batch have been answered by now.
        assert set(self.jobs) <= set(self.model.answers) | self.model.alone
        super().count()


@pytest.fixture(params=[True, False], ids=["async", "own-thread"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = Device(request.param)
    yield device
    device.may_launch.set()
    device.finish_all()
    assert device.answered_twice == []


def test_waiting_requests_become_batches_within_the_limit(device: Device) -> None:
    batcher = device.busy()
    # In order, as they fit; 25 is beyond the limit, and goes alone.
    submit(device, batcher, 4, 5, 3, 7, 25, 2)
    for batches in ([4, 5], [3, 7], [25], [2]):
        device.done[-1].release()
        assert device.wait(lambda batches=batches: device.launched[-1] == batches)
    device.done[-1].release()
    batcher.close()
    assert device.answers == {job: 10 * job for job in (1, 2, 3, 4, 5, 7, 25)}
    assert device.counted == device.launched
    assert device.failures == []


@pytest.mark.parametrize("in_flight", [1, 2, 3])
def test_no_more_batches_are_in_flight_than_allowed(device: Device, in_flight: int) -> None:
    batcher = device.batcher(max_cost=1, in_flight=in_flight)
    submit(device, batcher, *range(1, 7))
    for done in range(6):
        launched = min(done + in_flight, 6)
        assert device.wait(lambda launched=launched: len(device.launched) == launched)
        time.sleep(0.02)  # one too many would be launched by now
        assert len(device.launched) == launched
        device.done[done].release()
    batcher.close()
    assert device.launched == [[job] for job in range(1, 7)]


def test_a_full_queue_refuses_and_forgets_nobody(device: Device) -> None:
    batcher = device.busy(max_cost=1, max_queue=2)
    assert submit(device, batcher, 2, 3) == []
    assert submit(device, batcher, 4, 6) == [4, 6]
    assert batcher.totals.rejects == {"full": 2}
    full = device.answers[4]
    assert isinstance(full, RequestError)
    assert (full.code, full.message) == (Code.UNAVAILABLE, "the server is full, try again later")
    device.done[0].release()
    assert device.wait(lambda: device.launched[-1] == [2])
    assert submit(device, batcher, 5) == []  # there is room again
    device.finish(1, 2, 3)
    batcher.close()
    assert sorted(device.answers) == [1, 2, 3, 4, 5, 6]


def test_a_request_that_is_launched_at_once_needs_no_room_in_the_queue() -> None:
    device = Device(async_launch=True)
    batcher = device.batcher(max_queue=1, in_flight=1)
    assert submit(device, batcher, 1) == []
    assert submit(device, batcher, 2, 3) == [3]
    # While the first is being answered, the device is idle and nobody has launched the second yet.
    with device.changed:
        device.done[0].release()
        wait_until(lambda: batcher._in_flight == 0)
        in_between = threading.Thread(target=submit, args=(device, batcher, 4, 5))
        in_between.start()
        wait_until(lambda: batcher.totals.rejects["full"] >= 2)
    in_between.join()
    assert device.wait(lambda: len(device.launched) == 2)
    device.finish_all()
    batcher.close()
    assert device.launched == [[1], [2, 4]]
    assert {job for job, answer in device.answers.items() if isinstance(answer, RequestError)} == {3, 5}


def test_requests_that_arrive_during_a_launch_count_against_the_queue(device: Device) -> None:
    batcher = device.batcher(max_queue=2, in_flight=1)
    device.may_launch.clear()
    first = threading.Thread(target=submit, args=(device, batcher, 1))
    first.start()
    assert device.wait(lambda: device.launched == [[1]])
    others = threading.Thread(target=submit, args=(device, batcher, 2, 3, 4))
    others.start()
    # With `async_launch` the refusal is sent after the launch, which this thread cannot make before the first.
    if not device.async_launch:
        assert device.wait(lambda: 4 in device.answers)
    else:
        with batcher._changed:
            assert batcher._changed.wait_for(lambda: batcher.totals.rejects["full"], timeout=TIMEOUT_S)
    assert device.launched == [[1]]
    device.may_launch.set()
    first.join()
    others.join()
    device.finish_all()
    assert device.wait(lambda: len(device.done) == 2)
    device.finish_all()
    batcher.close()
    assert [job for job in (1, 2, 3, 4) if isinstance(device.answers[job], RequestError)] == [4]
    assert device.launched == [[1], [2, 3]]


@pytest.mark.parametrize(
    ("how", "code", "says"),
    [("late", Code.UNAVAILABLE, "Request timeout expired"), ("cancelled", Code.CANCELLED, "cancelled")],
)
def test_a_request_that_is_dropped_is_answered_and_never_launched(
    device: Device, how: str, code: Code, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "POLL_AFTER_S", 0.0)
    batcher = device.busy(max_cost=1)
    submit(device, batcher, 2, deadline=time.monotonic() - 1 if how == "late" else FOREVER)
    submit(device, batcher, 3)
    device.cancelled = {2} if how == "cancelled" else set()
    device.done[0].release()
    assert device.wait(lambda: device.launched[-1] == [3])
    device.done[1].release()
    batcher.close()
    assert device.launched == [[1], [3]]
    dropped = device.answers[2]
    assert isinstance(dropped, RequestError)
    assert dropped.code is code
    assert says in dropped.message
    assert batcher.totals.rejects[how] == 1


@pytest.mark.parametrize(("unlucky", "where"), [(13, "launch"), (17, "finish")])
def test_a_batch_that_fails_affects_no_other(device: Device, unlucky: int, where: str) -> None:
    batcher = device.busy(max_cost=20)
    submit(device, batcher, 2, unlucky, 19)
    device.done[0].release()
    assert device.wait(lambda: 1 in device.answers)
    for index in range(1, 3):
        if device.wait(lambda index=index: len(device.done) > index or 19 in device.answers):
            device.finish_all()
    batcher.close()
    for job in (2, unlucky):
        error = device.answers[job]
        assert isinstance(error, RequestError)
        assert error.code is Code.INTERNAL
        assert "unlucky" not in error.message  # details stay in the log
    assert (device.answers[1], device.answers[19]) == (10, 190)
    assert [str(error) for error in device.failures] == [f"unlucky {where}"]
    assert device.counted == [[1], [19]]
    assert batcher.totals.call.count == 2  # those that failed have no time


class Pace(LaunchPace):
    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def launched(self, cost: float, began: float, now: float) -> None:
        self.told.append("launched")
        super().launched(cost, began, now)

    def finished(self, now: float) -> None:
        self.told.append("finished")
        super().finished(now)

    def forget(self, now: float) -> None:
        self.told.append("forgotten")
        super().forget(now)


def test_the_pace_learns_from_no_batch_that_fails(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither what a launch takes, nor what a batch takes."""
    monkeypatch.setattr("hiscore.batching.batcher.LaunchPace", Pace)
    batcher = device.batcher(in_flight=1, max_cost=1)
    for job in (13, 17, LOSES_ITS_ANSWER, 1):
        submit(device, batcher, job)
        wait_until(lambda job=job: device.finish_all() or job in device.answers)
    batcher.close()
    assert batcher._pace.told == [*2 * ["launched", "forgotten"], "launched", "finished"]


def test_closing_runs_what_waits_and_refuses_what_arrives(device: Device) -> None:
    batcher = device.batcher(max_cost=1, in_flight=1)
    submit(device, batcher, 1, 2, 3)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    with batcher._changed:
        assert batcher._changed.wait_for(lambda: batcher._closing, timeout=TIMEOUT_S)
    assert submit(device, batcher, 4) == [4]
    refused = device.answers[4]
    assert isinstance(refused, RequestError)
    assert (refused.code, refused.message) == (Code.UNAVAILABLE, "the server is shutting down")
    for index in range(3):
        assert device.wait(lambda index=index: len(device.done) > index)
        assert closing.is_alive()
        device.done[index].release()
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    assert device.launched == [[1], [2], [3]]
    assert [device.answers[job] for job in (1, 2, 3)] == [10, 20, 30]
    assert submit(device, batcher, 5) == [5]
    assert batcher.totals.rejects["full"] == 0


def test_an_idle_model_runs_a_request_on_the_spot(device: Device) -> None:
    batcher = device.batcher(max_cost=100, in_flight=1, max_alone=25)
    device.alone = {1, 13, 17, 25}
    submit(device, batcher, 5)
    assert batcher.run_alone(1) is None  # another is in flight
    device.finish(0)
    assert device.wait(lambda: 5 in device.answers)
    calls, waits = batcher.totals.call.sum, batcher.totals.queue_wait.sum
    assert device.run_alone(batcher, 1) == 10
    assert device.counted == [[5], [1]]
    assert batcher.totals.call.count == 2
    assert batcher.totals.call.sum >= calls + 0.015
    assert batcher.totals.queue_wait.sum == waits
    assert batcher.run_alone(26) is None  # too large to keep others waiting for
    assert device.run_alone(batcher, 25) == 250
    for unlucky in (13, 17):
        assert isinstance(device.run_alone(batcher, unlucky), RequestError)
    batcher.close()
    assert device.answers == {5: 50}
    assert device.counted == [[5], [1], [25]]
    assert len(device.failures) == 2
    launched = list(device.launched)
    assert batcher.run_alone(1) is None  # it has been closed
    assert device.launched == launched


def test_a_request_on_the_spot_that_cannot_be_counted_is_answered(device: Device) -> None:
    batcher = device.batcher(max_alone=25)  # nobody has been answered, as the batch's `count` expects
    assert [device.run_alone(batcher, job) for job in (1, 2)] == [10, 20]
    batcher.close()
    assert device.counted == []


def test_what_arrives_while_a_request_runs_on_the_spot_follows_it(device: Device) -> None:
    batcher = device.batcher(max_cost=100, in_flight=1, max_alone=25)
    device.alone = {1}
    answers: list[object] = []
    alone = threading.Thread(target=lambda: answers.append(batcher.run_alone(1)))
    alone.start()
    assert device.wait(lambda: device.launched == [[1]])
    submit(device, batcher, 2)
    assert device.launched == [[1]]
    device.finish_all()
    assert device.wait(lambda: device.launched == [[1], [2]])
    device.done[1].release()
    batcher.close()
    alone.join()
    assert (answers, device.answers) == ([10], {2: 20})


def test_answered_calls_have_a_time_and_refused_ones_have_not(device: Device) -> None:
    batcher = device.busy(max_cost=1, max_queue=1)
    submit(device, batcher, 2)
    assert submit(device, batcher, 4) == [4]  # refused
    time.sleep(0.02)
    device.finish(0, 1)
    batcher.close()
    assert (batcher.totals.call.count, batcher.totals.queue_wait.count) == (2, 2)
    assert batcher.totals.call.sum > batcher.totals.queue_wait.sum >= 0.02


@pytest.mark.parametrize("job", [CANNOT_BE_JOINED, LOSES_ITS_ANSWER, MUTE])
def test_what_cannot_be_answered_harms_no_later_call(device: Device, job: int) -> None:
    """The thread that answers would end, and every later call would wait for ever."""

    def answered(job: int) -> bool:
        device.finish_all()
        return job in device.answers

    batcher = device.batcher()
    submit(device, batcher, job)
    if job != MUTE:
        wait_until(lambda: answered(job))
        error = device.answers[job]
        assert isinstance(error, RequestError)
        assert error.code is Code.INTERNAL
    submit(device, batcher, 5)
    wait_until(lambda: answered(5))
    assert device.answers[5] == 50
    batcher.close()


@pytest.mark.parametrize("small", [True, False])
def test_the_next_batch_is_formed_when_it_is_due(monkeypatch: pytest.MonkeyPatch, small: bool) -> None:
    """Until then whoever comes may still join it; then it is launched though nothing has finished.

    Where no small requests are to be expected (the control), it is launched at once.
    """
    device = Device(async_launch=True)
    batcher = device.batcher()
    due = [FOREVER]
    monkeypatch.setattr(waiting.RequestOrder, "expects_small", lambda self: small)
    monkeypatch.setattr(LaunchPace, "due", lambda self: due[0])
    submit(device, batcher, 1)
    submit(device, batcher, 2)
    submit(device, batcher, 3)
    assert device.launched == ([[1]] if small else [[1], [2]])
    due[0] = time.monotonic() + 0.01
    submit(device, batcher, 4)
    if small:
        assert device.wait(lambda: len(device.launched) == 2)
        assert device.launched == [[1], [2, 3, 4]]
    device.finish_all()
    assert device.wait(lambda: sum(map(len, device.launched)) == 4)
    device.finish_all()
    batcher.close()
    assert device.answers == {job: 10 * job for job in (1, 2, 3, 4)}


@pytest.mark.parametrize(("due", "alarms"), [(0.0, []), (1.0, []), (FOREVER, [FOREVER])])
def test_nothing_due_sets_an_alarm(monkeypatch: pytest.MonkeyPatch, due: float, alarms: list[float]) -> None:
    """It would wake a thread that finds nothing to do."""
    device = Device(async_launch=True)
    batcher = device.batcher()
    times: list[float] = []
    monkeypatch.setattr(waiting.RequestOrder, "expects_small", lambda self: True)
    monkeypatch.setattr(LaunchPace, "due", lambda self: due)
    monkeypatch.setattr(batcher._alarm, "set", times.append)
    submit(device, batcher, 1)
    submit(device, batcher, 2)
    assert sorted(set(times)) == alarms
    assert device.launched == ([[1]] if alarms else [[1], [2]])
    monkeypatch.undo()
    device.finish_all()
    assert device.wait(lambda: len(device.launched) == 2)
    device.finish_all()
    batcher.close()
