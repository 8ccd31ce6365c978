"""The processes that keep cores awake."""

import ctypes
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from hiscore.launcher import spin
from hiscore.launcher.child import start_child
from hiscore.launcher.spin import LOOK_S, Core, has_work, watch
from hiscore.launcher.spinner import Spinner
from hiscore.serving.load_board import LoadBoard
from tests.support.processes import alive
from tests.support.timeouts import TIMEOUT_S

PR_SET_CHILD_SUBREAPER = 36
CORES = len(os.sched_getaffinity(0))


class Time(Core):
    """Goes on by a second with every look. It is a core, too, and notes when it is awake."""

    def __init__(self, work: set[int], end: int) -> None:
        self.now, self._work, self._end = -1, work, end
        self.awake: list[int] = []
        self.asleep: list[int] = []

    def clock(self) -> float:
        self.now += 1
        return self.now

    def busy(self) -> bool:
        return self.now in self._work

    def keep_awake(self) -> None:
        self.awake.append(self.now)

    def let_sleep(self) -> None:
        self.asleep.append(self.now)

    def sleep(self, seconds: float) -> None:
        assert seconds == LOOK_S

    def ended(self) -> bool:
        return self.now >= self._end

    def run_for(self, spin_s: float) -> list[int]:
        """When a core was left asleep."""
        watch(self.busy, [self], spin_s, self.ended, self.clock, self.sleep)
        assert sorted(self.awake + self.asleep) == list(range(self._end + 1))
        return self.asleep


def test_a_core_is_kept_awake_while_there_is_work_and_for_a_time_after_it() -> None:
    assert Time({2, 3, 4, 9}, 14).run_for(spin_s=3) == [0, 1, 7, 8, 12, 13, 14]
    # Work within that time begins it anew.
    assert Time({2, 4, 6}, 10).run_for(spin_s=3) == [0, 1, 9, 10]


def test_controls_without_work_it_sleeps_and_without_an_end_of_the_time_it_never_does() -> None:
    assert Time(set(), 3).run_for(spin_s=3) == [0, 1, 2, 3]
    assert Time({0}, 30).run_for(spin_s=math.inf) == []


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
    """Its processes, all of them at work: the first, and one for each core."""
    first = psutil.Process(spinner.pid)
    assert wait_until(lambda: len(first.children()) == CORES)
    processes = [first, *first.children()]
    assert wait_until(
        lambda: all(
            os.sched_getscheduler(each.pid) == os.SCHED_IDLE and len(each.cpu_affinity()) == 1
            for each in processes[1:]
        )
    )
    return processes


def all_are(status: str, processes: list[psutil.Process]) -> bool:
    return wait_until(lambda: all(each.status() == status for each in processes))


def test_each_core_has_a_process_below_all_others_until_it_is_closed(tmp_path: Path) -> None:
    LoadBoard(tmp_path, "scorer", server=7)
    spinner = Spinner(2, tmp_path, server=7)
    first, *of_cores = started(spinner)
    assert {os.sched_getscheduler(each.pid) for each in of_cores} == {os.SCHED_IDLE}
    assert os.sched_getscheduler(first.pid) == os.SCHED_OTHER
    assert {each.cpu_affinity()[0] for each in of_cores} == os.sched_getaffinity(0)
    assert len(alive([first, *of_cores])) == CORES + 1
    spinner.close()
    assert wait_until(lambda: not alive([first, *of_cores]))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="Popen has no process_group")
def test_they_are_in_the_servers_session(tmp_path: Path) -> None:
    """Linux shares processors between sessions (autogroup): in another, SCHED_IDLE would be below nothing."""
    LoadBoard(tmp_path, "scorer", server=7)
    server = start_child([shutil.which("sleep") or "", "1000"])
    spinner = Spinner(2, tmp_path, server=7)
    try:
        assert {os.getsid(each.pid) for each in started(spinner)} == {os.getsid(server.pid)}
        # But out of reach of a Ctrl-C, in groups of their own.
        assert os.getpgid(server.pid) == server.pid != os.getpgid(0)
        assert os.getpgid(spinner.pid) == spinner.pid
    finally:
        spinner.close()
        server.kill()
        server.wait()


def test_they_spin_when_there_is_work_and_sleep_when_there_is_none(tmp_path: Path) -> None:
    board = LoadBoard(tmp_path, "scorer", server=7)
    spinner = Spinner(2, tmp_path, server=7)
    _, *of_cores = started(spinner)
    for _ in range(3):
        assert all_are(psutil.STATUS_SLEEPING, of_cores)
        board.publish(1.0)
        assert all_are(psutil.STATUS_RUNNING, of_cores)
        board.publish(0.0)
    assert all_are(psutil.STATUS_SLEEPING, of_cores)
    spinner.close()


def test_a_process_that_has_the_lock_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that gives it back and is stopped before that: it must neither block the first nor be left asleep."""
    asked = []
    monkeypatch.setattr(os, "eventfd_write", lambda *args: asked.append(args))
    core = Core()
    assert spin.libc.pthread_spin_trylock(ctypes.byref(core._lock)) == 0
    core.keep_awake()
    core.let_sleep()
    core.keep_awake()
    assert asked == []
    spin.libc.pthread_spin_unlock(ctypes.byref(core._lock))
    core.keep_awake()
    core.keep_awake()
    assert len(asked) == 1
    # Control: it is held until it is given back.
    assert spin.libc.pthread_spin_trylock(ctypes.byref(core._lock)) != 0
    core.let_sleep()
    assert spin.libc.pthread_spin_trylock(ctypes.byref(core._lock)) == 0


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
    assert all_are(psutil.STATUS_RUNNING, processes[1:])
    processes[0].send_signal(signal.SIGKILL)
    assert wait_until(lambda: not alive(processes))
