"""The time of the next launch by the test's own clock, the alarm at that time, and the one thread that acts."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from hiscore.batching.launch_pace import ERRORS, WAKE_S, WARM_UP_BATCHES, Alarm, LaunchPace, OneAtATime
from tests.support.timeouts import TIMEOUT_S

LAUNCH = 0.0006
COSTS = (300, 2_000, 8_000, 500)


def line(cost: float) -> float:
    """What a batch takes, in seconds: a floor and 1.7 microseconds a token."""
    return 0.001 + 1.7e-6 * cost


def trained(
    seconds: Callable[[float], float], costs: tuple[int, ...] = COSTS, batches: int = 200
) -> LaunchPace:
    """A pace that has seen batches, each begun in the middle of its launch; the last ended at time 1000."""
    pace = LaunchPace()
    took = [seconds(costs[index % len(costs)]) for index in range(batches)]
    now = 1000 - sum(took) - batches * LAUNCH / 2
    for index, each in enumerate(took):
        pace.launched(costs[index % len(costs)], now, now + LAUNCH)
        now += LAUNCH / 2 + each
        pace.finished(now)
    return pace


def test_the_next_is_due_a_launch_before_the_end() -> None:
    pace = trained(line)
    pace.launched(4_000, 1000.0, 1000.0 + LAUNCH)
    end = 1000.0 + LAUNCH / 2 + line(4_000)
    # The decaying means weigh batches a little differently, so the line is off by a few parts in a million.
    assert pace.due() == pytest.approx(end - LAUNCH - WAKE_S, abs=2e-5)
    pace.launched(500, 1000.001, 1000.001 + LAUNCH)
    assert pace.due() == pytest.approx(end + line(500) - LAUNCH - WAKE_S, abs=4e-5)


def test_what_runs_behind_another_counts_from_its_end() -> None:
    pace = trained(line)
    pace.launched(4_000, 1000.0, 1000.0 + LAUNCH)
    pace.launched(500, 1000.001, 1000.001 + LAUNCH)
    end = 1000.0 + LAUNCH / 2 + line(4_000)
    pace.finished(end)
    assert pace.due() == pytest.approx(end + line(500) - LAUNCH - WAKE_S, abs=4e-5)
    pace.finished(1000.2)
    assert pace.due() == 0.0, "nothing runs"


def test_what_ran_behind_another_took_the_time_from_its_end() -> None:
    """As on a busy device: each is launched when the one before it begins."""
    pace, now = LaunchPace(), 1000.0
    pace.launched(COSTS[0], now, now)
    for index in range(200):
        pace.launched(COSTS[(index + 1) % len(COSTS)], now, now)
        now += line(COSTS[index % len(COSTS)])
        pace.finished(now)
    assert pace.predict(4_000) == pytest.approx(line(4_000))


def test_batches_that_failed_teach_nothing() -> None:
    """What follows them counts from the end of the last. The control: counted as finished, they bend the line."""
    pace, bent = trained(line), trained(line)
    for failed in range(32):
        for each in (pace, bent):
            each.launched(8_000, 1000.0 + failed, 1000.0 + failed)
        pace.forget(1000.0 + failed)
        bent.finished(1000.0 + failed)
    assert pace.predict(8_000) == trained(line).predict(8_000)
    assert bent.predict(8_000) < 0.8 * line(8_000)
    pace.launched(4_000, 1040.0, 1040.0)
    before = pace.due()
    pace.launched(500, 1040.5, 1040.5)
    pace.forget(1041.0)
    assert pace.due() == pytest.approx(before + 1.0 + pace.predict(500) - pace.predict(4_000))


def test_nothing_is_held_back_before_enough_is_known() -> None:
    for batches in range(WARM_UP_BATCHES):
        pace = trained(line, batches=batches)
        pace.launched(8_000, 1000.0, 1000.0)
        assert pace.due() == 0.0


def test_batches_of_one_size_take_their_mean() -> None:
    pace = trained(line, costs=(2_000,))
    assert pace.predict(2_000) == pytest.approx(line(2_000))
    assert pace.predict(100_000) == pytest.approx(line(2_000))


def test_where_predictions_err_it_is_due_earlier() -> None:
    rng = np.random.default_rng(0)
    exact, rough = trained(line), trained(lambda cost: line(cost) * rng.uniform(0.5, 1.5))
    for pace in (exact, rough):
        pace.launched(4_000, 1000.0, 1000.0)
    early = exact.due() - rough.due()
    mean_error = np.mean([line(cost) for cost in COSTS]) / 4
    assert early > 0.5 * ERRORS * mean_error


def test_it_learns_when_batches_become_slower() -> None:
    pace = trained(line)
    now = 1000.0
    for index in range(400):
        cost = COSTS[index % len(COSTS)]
        pace.launched(cost, now, now)
        now += 2 * line(cost)
        pace.finished(now)
    assert pace.predict(4_000) == pytest.approx(2 * line(4_000), rel=0.05)


def test_the_alarm_rings_once_and_not_before_its_time() -> None:
    rang: list[float] = []
    ringing = threading.Semaphore(0)

    def ring() -> None:
        rang.append(time.monotonic())
        ringing.release()

    alarm = Alarm(ring, "test")
    at = time.monotonic() + 0.02
    alarm.set(at)
    assert ringing.acquire(timeout=TIMEOUT_S)
    assert rang[0] >= at
    alarm.set(time.monotonic() + 1_000)
    alarm.set(0.0)  # replaces it
    assert ringing.acquire(timeout=TIMEOUT_S)
    alarm.set(time.monotonic() + 1_000)
    alarm.close()
    assert len(rang) == 2


def test_who_asks_meanwhile_goes_on_and_it_runs_again() -> None:
    runs, may_end, begun = [], threading.Semaphore(0), threading.Semaphore(0)

    def run() -> None:
        runs.append(threading.current_thread())
        begun.release()
        assert may_end.acquire(timeout=TIMEOUT_S)

    once = OneAtATime(run)
    runner = threading.Thread(target=once)
    runner.start()
    assert begun.acquire(timeout=TIMEOUT_S)
    once()
    once()
    may_end.release(2)
    runner.join(TIMEOUT_S)
    assert runs == [runner, runner], "twice asked for meanwhile, run once more, by the same thread"


def test_nobody_is_forgotten() -> None:
    waiting, done, running = [0], [0], threading.Lock()
    changed = threading.Lock()

    def run() -> None:
        assert running.acquire(blocking=False), "two run at once"
        with changed:
            done[0] += waiting[0]
            waiting[0] = 0
        running.release()

    once = OneAtATime(run)

    def ask() -> None:
        for _ in range(2_000):
            with changed:
                waiting[0] += 1
            once()

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    assert (waiting, done) == ([0], [8_000])


def test_it_can_be_kept_from_running() -> None:
    ran: list[int] = []
    once = OneAtATime(lambda: ran.append(1))
    with once.lock:
        once()
        assert not ran
    once()
    assert ran == [1]
