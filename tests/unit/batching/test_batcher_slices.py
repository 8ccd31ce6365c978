"""A batcher whose model launches large batches in slices: small ones run in between, and each is answered once."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiscore.batching import waiting
from hiscore.batching.batched_model import BatchLimits, LaunchedSlice, Part
from hiscore.batching.batcher import Batcher
from hiscore.batching.launch_pace import LaunchPace
from hiscore.errors import RequestError
from tests.support.batch_model import Batch, BatchModel
from tests.support.timeouts import TIMEOUT_S

submit = BatchModel.submit
BETWEEN, SLICE, BUDGET = 10, 20, 100
FAILS_TO_LAUNCH, FAILS = 1_000, 2_000
"""Added to a job: all but its first slice cannot be launched, or fail on the device."""


def fault(job: int) -> int:
    """Which of these it has; 0: none."""
    return job // 1_000 % 10 * 1_000


def cost(job: int) -> int:
    return job % 1_000


class Plan:
    """A job that fits no batch has parts, which are jobs of their own cost; `done` counts what they cost."""

    def price(self, job: int, done: int) -> int:
        return cost(job) - done

    def take(self, job: int, done: int, room: int, at_least_one: bool) -> Part[int] | None:
        left = cost(job) - done
        taken = left if left <= BUDGET else min(room, BUDGET)
        if taken > room and not at_least_one:
            return None
        rest = left - taken
        return Part(job - cost(job) + taken, taken, done + taken if rest else None, rest)


class Device(BatchModel):
    """Computes what is launched in that order, one piece whenever the test says so. Jobs are their own costs.

    What was launched are jobs, and how many slices of them were left.
    """

    between = BETWEEN

    def cost(self, job: int) -> int:
        return cost(job)

    def plan(self) -> Plan:
        return Plan()

    def launch(self, jobs: list[int]) -> Iterator[LaunchedSlice | Batch]:
        total = sum(map(cost, jobs))
        slices = 1 if total <= BETWEEN else -(-total // SLICE)
        return (self._launch(jobs, left, first=left == slices - 1) for left in reversed(range(slices)))

    def _launch(self, jobs: list[int], left: int, first: bool) -> LaunchedSlice | Batch:
        faults = {fault(job) for job in jobs if not first}
        if FAILS_TO_LAUNCH in faults:
            raise ValueError("cannot be launched")
        self.note_launch((jobs, left))

        def wait() -> None:
            self.wait_for_go()
            if FAILS in faults:
                raise ValueError("fails on the device")

        if not left:
            return Batch(self, jobs, wait)
        return LaunchedSlice(left, wait)

    def on_failure(self, error: Exception) -> None:
        assert isinstance(error, ValueError)

    def wait_for(self, pieces: int) -> list[tuple[list[int], int]]:
        """The first pieces that were launched."""
        assert self.wait(lambda: len(self.launched) >= pieces), self.launched
        return self.launched[:pieces]


@pytest.fixture(params=[True, False], ids=["async", "own-thread"])
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    device = Device(request.param)
    yield device
    device.go.release(1_000)


def batcher_of(device: Device, in_flight: int = 1, **limits: int) -> Batcher[int]:
    return Batcher(device, BatchLimits(BUDGET, 1_000, max_in_flight=in_flight, **limits))


def finish(device: Device, batcher: Batcher[int]) -> None:
    """Let the device compute all that is left."""
    device.go.release(10_000)
    batcher.close()
    assert device.answered_twice == []


def test_small_ones_run_between_slices_and_are_answered_first(device: Device) -> None:
    """One batch of them behind each slice, then the next slice."""
    batcher = batcher_of(device)
    submit(device, batcher, 80)
    assert device.wait_for(1) == [([80], 3)]
    submit(device, batcher, 90, 6, 3, 5)
    device.go.release(1)
    assert device.wait_for(2)[-1] == ([6, 3], 0)
    submit(device, batcher, 4)
    device.go.release(1)
    assert device.wait_for(3)[-1] == ([80], 2)
    device.go.release(1)
    assert device.wait_for(4)[-1] == ([5, 4], 0)
    device.go.release(3)
    # No small one waits.
    assert device.wait_for(7)[-3:] == [([80], 1), ([80], 0), ([90], 4)]
    finish(device, batcher)
    assert [job for job in device.answers if job != 90] == [6, 3, 5, 4, 80]
    assert device.answers == {job: 10 * job for job in (80, 90, 6, 3, 5, 4)}
    assert device.counted == [[6, 3], [5, 4], [80], [90]]


def test_no_more_pieces_are_in_flight_than_allowed(device: Device) -> None:
    batcher = batcher_of(device, in_flight=2)
    submit(device, batcher, 80)
    assert device.wait_for(2) == [([80], 3), ([80], 2)]
    submit(device, batcher, 5)
    assert len(device.launched) == 2
    device.go.release(1)
    assert device.wait_for(3)[-1] == ([5], 0)
    finish(device, batcher)
    assert device.answers == {80: 800, 5: 50}


def test_parts_end_in_order(device: Device) -> None:
    """The last would fit between the slices of the one before it."""
    batcher = batcher_of(device)
    submit(device, batcher, 205)
    finish(device, batcher)
    assert device.answers == {205: [1_000, 1_000, 50]}


@pytest.mark.parametrize("how", [FAILS_TO_LAUNCH, FAILS])
def test_a_slice_that_fails_fails_its_batch_alone(how: int, device: Device) -> None:
    batcher = batcher_of(device)
    submit(device, batcher, how + 70)
    assert device.wait_for(1)
    submit(device, batcher, 5, 60)
    finish(device, batcher)
    assert isinstance(device.answers.pop(how + 70), RequestError)
    assert device.answers == {5: 50, 60: 600}


def test_closing_launches_what_is_left_of_a_batch(device: Device) -> None:
    batcher = batcher_of(device)
    submit(device, batcher, 80)
    assert device.wait_for(1)
    closing = threading.Thread(target=batcher.close)
    closing.start()
    for piece in range(2, 5):
        assert closing.is_alive()
        device.go.release(1)
        assert device.wait_for(piece)
    device.go.release(1)
    closing.join(TIMEOUT_S)
    assert not closing.is_alive()
    assert device.answers == {80: 800}


def test_alone_all_slices_are_launched_at_once(device: Device) -> None:
    batcher = batcher_of(device, max_alone_cost=80)
    device.go.release(1)
    assert batcher.run_alone(80) == 800
    batcher.close()
    assert device.launched == [([80], left) for left in (3, 2, 1, 0)]
    assert device.counted == [[80]]


def in_another_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join(TIMEOUT_S)
    assert not thread.is_alive()


def test_what_another_thread_submits_while_one_is_launched_alone_goes_behind_it() -> None:
    """And not only when that one has ended."""
    device = Device(async_launch=True)
    batcher = batcher_of(device, in_flight=2, max_alone_cost=60)
    launch = device.launch

    def launch_and_submit(jobs: list[int]) -> Iterator[LaunchedSlice | Batch]:
        if jobs == [60]:
            in_another_thread(lambda: submit(device, batcher, 80))
        yield from launch(jobs)

    device.launch = launch_and_submit  # type: ignore[method-assign]
    alone = threading.Thread(target=lambda: device.answers.update({60: batcher.run_alone(60)}))
    alone.start()
    assert device.wait_for(4) == [([60], 2), ([60], 1), ([60], 0), ([80], 3)]
    device.go.release(1_000)
    alone.join(TIMEOUT_S)
    batcher.close()
    assert device.answers == {60: 600, 80: 800}


class Hooked:
    def __init__(self, lock: threading.Lock, before: Callable[[], None]) -> None:
        self.lock, self.before = lock, [before]

    def acquire(self, blocking: bool = True) -> bool:
        while self.before:
            self.before.pop()()
        return self.lock.acquire(blocking)

    def release(self) -> None:
        self.lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def test_nothing_runs_alone_between_the_slices_of_what_another_thread_submits() -> None:
    """Its rows would be too many for what runs in between, and forwards share their inputs."""
    device = Device(async_launch=True)
    batcher = batcher_of(device, in_flight=2, max_alone_cost=60)
    lock = batcher._launch_ready.lock
    hooked = Hooked(lock, lambda: in_another_thread(lambda: submit(device, batcher, 80)))
    batcher._launch_ready.lock = hooked  # type: ignore[assignment]
    answers: list[object] = []
    alone = threading.Thread(target=lambda: answers.append(batcher.run_alone(60)))
    alone.start()
    alone.join(TIMEOUT_S)
    launched = list(device.launched)
    finish(device, batcher)
    assert answers == [None]
    assert launched == [([80], 3), ([80], 2)]


def test_the_pace_is_told_of_each_slice_by_its_share(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    costs: list[float] = []
    launched = LaunchPace.launched

    def told(self: LaunchPace, cost: float, began: float, now: float) -> None:
        costs.append(cost)
        launched(self, cost, began, now)

    monkeypatch.setattr(LaunchPace, "launched", told)
    batcher = batcher_of(device)
    submit(device, batcher, 80)
    finish(device, batcher)
    assert costs == [20, 20, 20, 20]


def test_a_slice_is_launched_when_it_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where small ones are to be expected, not as soon as there is room."""
    device = Device(async_launch=True)
    batcher = batcher_of(device, in_flight=2)
    due = [time.monotonic() + 1_000]
    monkeypatch.setattr(waiting.RequestOrder, "expects_small", lambda self: True)
    monkeypatch.setattr(LaunchPace, "due", lambda self: due[0])
    submit(device, batcher, 80)
    assert device.launched == [([80], 3)]
    submit(device, batcher, 5)
    due[0] = 0.0
    submit(device, batcher, 4)
    assert device.launched == [([80], 3), ([5, 4], 0)]
    finish(device, batcher)
    assert device.answers == {80: 800, 5: 50, 4: 40}


Jobs = st.lists(
    st.tuples(st.sampled_from([0, 0, 0, FAILS_TO_LAUNCH, FAILS]), st.integers(1, 230), st.integers(1, 3)),
    min_size=1,
    max_size=25,
)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(Jobs, st.booleans(), st.integers(1, 3))
def test_every_job_is_answered_once_and_slices_take_turns(
    jobs: list[tuple[int, int, int]], async_launch: bool, in_flight: int
) -> None:
    device = Device(async_launch)
    batcher = batcher_of(device, in_flight)
    sent = [wrong + work + 10_000 * index for index, (wrong, work, _) in enumerate(jobs)]
    for job, (_, _, done) in zip(sent, jobs, strict=True):
        submit(device, batcher, job)
        device.go.release(done)
    finish(device, batcher)
    assert sorted(device.answers) == sent
    # A batch fails if it has a second slice and a job with a fault, and no other does.
    faulty = [job for group, left in device.launched if left and any(map(fault, group)) for job in group]
    failed = [job for job, answer in device.answers.items() if isinstance(answer, RequestError)]
    assert {job - cost(job) for job in faulty} == {job - cost(job) for job in failed}
    check_turns(device.launched)


def check_turns(launched: Sequence[tuple[list[int], int]]) -> None:
    """Behind each slice comes one small batch at most, then the next slice, unless that cannot be launched."""
    for (group, left), (then, none), (after, _) in zip(launched, launched[1:], launched[2:], strict=False):
        if left and then != group and not any(fault(job) == FAILS_TO_LAUNCH for job in group):
            assert none == 0
            assert sum(map(cost, then)) <= BETWEEN
            assert after == group
