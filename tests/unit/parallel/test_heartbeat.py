"""Signs of life between ranks, over time that tests tell."""

import math
import socket
import threading
from collections.abc import Callable

import pytest

from hiscore.launcher.stubs import STOPPED_TOO_LONG_S
from hiscore.launcher.watchdog import POLL_SECONDS
from hiscore.parallel.heartbeat import ALIVE, BEAT_S, BUSY, ROUND_S, HeartbeatMonitor, HeartbeatSender
from tests.support.timeouts import TIMEOUT_S

LOST_WITHIN_S = 5
"""The promise, for death and for hanging."""
HOURS = 7_200
"""For other threads and processes, on the slowest machine."""


class Time:
    """A clock that goes on when a watch waits.

    Args:
        lives: Whether a rank says something at a time in seconds, and what.
        heartbeat: Where it does.
    """

    def __init__(self, heartbeat: socket.socket, lives: Callable[[float], bytes]) -> None:
        self.now, self._heartbeat, self._lives = 0.0, heartbeat, lives
        self.reached = threading.Event()

    def wait(self, seconds: float) -> None:
        self.now += seconds
        if said := self._lives(self.now):
            self._heartbeat.send(said)
        if self.now > HOURS:
            self.reached.set()
            threading.Event().wait(0.01)  # let the test end it


def lost_at(lives: Callable[[float], bytes], set_by_peers: bool = False, is_busy: bool = False) -> float:
    """When a rank is given up; infinity: never."""
    hears, beats = socket.socketpair()
    lost, time = threading.Event(), Time(beats, lives)
    busy = threading.Event()
    if is_busy:
        busy.set()
    at: list[float] = []

    def on_loss(what: str) -> None:
        assert what == "rank 3 hangs: no sign of life for 3 s"
        at.append(time.now)
        lost.set()
        time.reached.set()

    watch = HeartbeatMonitor({3: hears}, on_loss, None if set_by_peers else busy, time.wait)
    assert time.reached.wait(TIMEOUT_S)
    if not at:
        watch.close()
    hears.close()
    beats.close()
    return at[0] if at else math.inf


def test_a_rank_that_falls_silent_is_lost_in_time_and_one_that_lives_never_is() -> None:
    assert lost_at(lambda now: ALIVE) == math.inf
    found = lost_at(lambda now: ALIVE if now <= 100 else b"")
    # At worst it has just been heard, and the launcher has just looked for dead processes.
    assert BEAT_S < found - 100 <= LOST_WITHIN_S - ROUND_S - POLL_SECONDS


def test_the_silence_of_a_busy_rank_is_no_hang_until_its_next_sign_of_life() -> None:
    def pauses(now: float) -> bytes:
        """Loads from 10 to 100."""
        return BUSY if now == 10 else b"" if 10 < now < 100 or now > 200 else ALIVE

    assert 200 < lost_at(pauses, set_by_peers=True) <= 200 + LOST_WITHIN_S
    # The control: a rank whose word does not count.
    assert 10 < lost_at(pauses) <= 10 + LOST_WITHIN_S


def test_while_the_first_rank_loads_nobody_is_lost() -> None:
    assert lost_at(lambda now: b"", is_busy=True) == math.inf


def test_a_stopped_process_of_a_model_is_a_fault_in_time() -> None:
    """The launcher looks, and looks again when that is too long ago."""
    assert STOPPED_TOO_LONG_S + 2 * POLL_SECONDS < LOST_WITHIN_S


def test_a_death_is_heard_at_once() -> None:
    hears, beats = socket.socketpair()
    lost: list[str] = []
    said = threading.Event()
    busy = threading.Event()
    busy.set()  # not even then
    HeartbeatMonitor({2: hears}, lambda what: (lost.append(what), said.set())[-1], busy)
    beats.close()
    assert said.wait(TIMEOUT_S)
    assert lost == ["rank 2 has died"]
    hears.close()


def test_a_beat_waits_for_nobody() -> None:
    """A rank that loads for long reads nothing: its buffer is full of signs of life."""
    hears, beats = socket.socketpair()
    beat = HeartbeatSender([beats], None, on_loss=lambda: pytest.fail("nobody is lost"))
    for _ in range(100_000):
        beat.send()
    beat.close()
    assert set(hears.recv(2**20)) == set(ALIVE)
    hears.close()
    beats.close()
