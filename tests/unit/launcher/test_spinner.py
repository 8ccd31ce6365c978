"""The processes that keep cores awake."""

import ctypes
import math
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hiscore.launcher import spin
from hiscore.launcher.spin import LOOK_S, has_work, keep_awake
from hiscore.launcher.spinner import Spinner
from hiscore.serving.load_board import LoadBoard
from tests.support.processes import alive
from tests.support.timeouts import TIMEOUT_S

PR_SET_CHILD_SUBREAPER = 36
CORES = len(os.sched_getaffinity(0))


class Time:
    """Goes on by a second with every look, and by what is slept."""

    def __init__(self, work: set[int], end: int) -> None:
        self.now, self._work, self._end = -1, work, end
        self.asleep: list[int] = []

    def clock(self) -> float:
        self.now += 1
        return self.now

    def busy(self) -> bool:
        return self.now in self._work

    def sleep(self, seconds: float) -> None:
        assert seconds == LOOK_S
        self.asleep.append(self.now)

    def ended(self) -> bool:
        return self.now >= self._end

    def run(self, spin_s: float) -> list[int]:
        """When a process slept."""
        keep_awake(self.busy, spin_s, self.ended, self.clock, self.sleep)
        assert self.now == self._end
        return self.asleep


def test_a_core_is_kept_awake_while_there_is_work_and_for_a_time_after_it() -> None:
    assert Time({2, 3, 4, 9}, 14).run(spin_s=3) == [0, 1, 7, 8, 12, 13, 14]
    # Work within that time begins it anew.
    assert Time({2, 4, 6}, 10).run(spin_s=3) == [0, 1, 9, 10]


def test_controls_without_work_it_sleeps_and_without_an_end_of_the_time_it_never_does() -> None:
    assert Time(set(), 3).run(spin_s=3) == [0, 1, 2, 3]
    assert Time({0}, 30).run(spin_s=math.inf) == []


def test_work_is_what_an_instance_has_to_do(tmp_path: Path) -> None:
    """One whose queue is full has; a place that no instance has, has not."""

    def work(*loads: float) -> bool:
        directory = tmp_path / "-".join(map(str, loads))
        directory.mkdir()
        for model in ("decode", "scorer"):
            for load in loads:
                LoadBoard(directory, model, server=7).publish(load)
        return has_work([spin._map(str(path)) for path in sorted(directory.iterdir())])

    assert not has_work([])
    assert not work(0.0)
    assert not work(0.0, 0.0)
    assert work(0.0, 120.0)
    assert work(0.0, math.inf)


def wait_until(condition: Callable[[], bool]) -> bool:
    end = time.monotonic() + TIMEOUT_S
    while not condition() and time.monotonic() < end:
        time.sleep(0.01)
    return condition()


def started(spinner: Spinner) -> list[psutil.Process]:
    """Its processes, all of them at work."""
    first = psutil.Process(spinner.pid)
    assert wait_until(lambda: len(first.children()) == CORES - 1)
    processes = [first, *first.children()]
    assert wait_until(lambda: all(len(each.cpu_affinity()) == 1 for each in processes))
    return processes


def test_each_core_has_a_process_below_all_others_until_it_is_closed(tmp_path: Path) -> None:
    LoadBoard(tmp_path, "scorer", server=7)
    spinner = Spinner(2, tmp_path, server=7)
    processes = started(spinner)
    assert {os.sched_getscheduler(each.pid) for each in processes} == {os.SCHED_IDLE}
    assert {each.cpu_affinity()[0] for each in processes} == os.sched_getaffinity(0)
    assert len(alive(processes)) == CORES
    spinner.close()
    assert wait_until(lambda: not alive(processes))


@pytest.mark.skipif(CORES == 1, reason="there is one process")
@pytest.mark.parametrize("inherits", [True, False])
def test_a_containers_first_process_is_left_with_none(inherits: bool, tmp_path: Path) -> None:
    """Or a core's would be left with every restart of the server. Elsewhere there is nothing to reap."""
    libc = ctypes.CDLL(None)
    LoadBoard(tmp_path, "scorer", server=7)
    assert libc.prctl(PR_SET_CHILD_SUBREAPER, int(inherits)) == 0
    try:
        spinner = Spinner(2, tmp_path, server=7)
        processes = started(spinner)
        spinner.close()
        assert wait_until(lambda: not alive(processes))
        left = [each for each in psutil.Process().children() if each in processes]
        assert left == []
    finally:
        libc.prctl(PR_SET_CHILD_SUBREAPER, 0)


def test_all_end_with_the_first(tmp_path: Path) -> None:
    """As it does when the launcher is killed."""
    LoadBoard(tmp_path, "scorer", server=7).publish(1.0)  # they spin
    spinner = Spinner(2, tmp_path, server=7)
    processes = started(spinner)
    processes[0].send_signal(signal.SIGKILL)
    assert wait_until(lambda: not alive(processes))
