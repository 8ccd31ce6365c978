"""What counts as a fault, what follows, and how often: with a fake server and clock."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from hiscore.launcher.errors import LaunchError
from hiscore.launcher.watchdog import (
    MAX_SECONDS_BETWEEN_CHECKS,
    POLL_SECONDS,
    RestartPolicy,
    Watchdog,
)
from hiscore.settings import ServeSettings


class Stop(BaseException):
    """Ends a watch, as a signal does."""


class FakeClock:
    def __init__(self) -> None:
        self.now = 100.0
        self.slept: list[float] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float, /) -> None:
        self.slept.append(seconds)
        self.now += seconds


class FakeCanaries:
    def __init__(self) -> None:
        self.silent: list[str] = []
        self.doubtful: list[str] = []
        self.closed = False

    def close(self) -> None:
        self.closed = True


class FakeServer:
    """Runs until a test sets `broken` or its canaries; failures: what its next restarts raise."""

    def __init__(self, clock: FakeClock, **settings: Any) -> None:
        self.settings = ServeSettings(**settings)
        self.clock = clock
        self.broken = ""
        self.failures: list[LaunchError] = []
        self.started: list[FakeCanaries] = []
        self.events: list[tuple[str, float]] = []
        self.restart_takes_s = 0.0
        self.during_restart: Callable[[], object] = lambda: None

    def start_canaries(self) -> FakeCanaries | None:
        if not self.settings.canary_seconds:
            return None
        self.started.append(FakeCanaries())
        return self.started[-1]

    def fault(self) -> str:
        return self.broken

    def kill(self) -> None:
        self.events.append(("kill", self.clock.now))

    def restart(self) -> None:
        self.events.append(("restart", self.clock.now))
        self.clock.now += self.restart_takes_s
        self.during_restart()
        if self.failures:
            raise self.failures.pop(0)
        self.broken = ""

    @property
    def calls(self) -> list[str]:
        return [name for name, _ in self.events]


def watchdog_of(server: FakeServer, *steps: Callable[[], object]) -> Watchdog:
    """A watchdog that takes a step each time that it is idle, and stops when they are over."""
    left = list(steps)

    def idle() -> None:
        if not left:
            raise Stop
        left.pop(0)()

    return Watchdog(server, idle, server.clock)


def watch(
    server: FakeServer, *steps: Callable[[], object], expected: type[BaseException] = Stop
) -> tuple[Watchdog, str]:
    """Watch until the steps are over; how the watch ended."""
    watchdog = watchdog_of(server, *steps)
    with pytest.raises(expected) as ended:
        watchdog.watch()
    return watchdog, str(ended.value)


def nothing() -> None:
    """A step in which nothing happens."""


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def test_a_healthy_server_is_left_alone(clock: FakeClock) -> None:
    server = FakeServer(clock)
    watchdog, _ = watch(server, *[nothing] * 1_000)
    assert server.calls == []
    assert watchdog.restarts == 0
    assert clock.slept == [POLL_SECONDS] * 1_000
    assert len(server.started) == 1


def exits(server: FakeServer) -> None:
    server.broken = "tritonserver was killed"


def loses_a_model(server: FakeServer) -> None:
    server.broken = "the process of model scorer has died"


def goes_silent(server: FakeServer) -> None:
    server.started[-1].silent.append("scorer")


FAULTS = {
    exits: "tritonserver was killed",
    loses_a_model: "the process of model scorer has died",
    goes_silent: "no answer from scorer",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_restarts_the_server(fault: Callable[[FakeServer], None], clock: FakeClock) -> None:
    server = FakeServer(clock)
    watchdog, _ = watch(server, lambda: fault(server), *[nothing] * 20)
    assert server.calls == ["kill", "restart"]
    assert watchdog.restarts == 1
    # The canaries of the dead server stop, those of the new one begin.
    assert len(server.started) == 2
    assert server.started[0].closed


@pytest.mark.parametrize("fault", FAULTS)
def test_without_restarts_a_fault_ends_the_watch(
    fault: Callable[[FakeServer], None], clock: FakeClock
) -> None:
    server = FakeServer(clock, max_restarts=0)
    watchdog, error = watch(server, lambda: fault(server), nothing, expected=LaunchError)
    assert error == FAULTS[fault]
    assert server.calls == ["kill"]  # who waits for an answer gets an error all the same
    assert watchdog.restarts == 0
    assert server.started[0].closed


def test_a_doubtful_model_makes_it_unready_and_no_more(clock: FakeClock) -> None:
    server = FakeServer(clock)
    seen = []
    watchdog = Watchdog(server, nothing, clock)
    seen.append(watchdog.unready)
    server.started[0].doubtful = ["scorer", "decode"]
    seen.append(watchdog.unready)
    server.started[0].doubtful = []
    seen.append(watchdog.unready)
    assert seen == ["", "no answer from scorer, decode", ""]
    assert watchdog.alive


def test_without_canaries_processes_are_watched_all_the_same(clock: FakeClock) -> None:
    server = FakeServer(clock, canary_seconds=0)
    watch(server, nothing, lambda: exits(server), *[nothing] * 20)
    assert server.started == []
    assert server.calls == ["kill", "restart"]
    assert Watchdog(server, nothing, clock).unready == ""


def test_restarts_have_pauses_that_double(clock: FakeClock) -> None:
    server = FakeServer(clock)
    server.failures = [LaunchError("not yet"), LaunchError("nor now")]
    watchdog, _ = watch(server, lambda: exits(server), *[nothing] * 50)
    killed, *restarted = [when for _, when in server.events]
    assert server.calls == ["kill", "restart", "restart", "restart"]
    assert [b - a for a, b in pairwise([killed, *restarted])] == pytest.approx([1, 2, 4])
    assert watchdog.restarts == 3


def test_a_restart_that_fails_counts_and_its_reason_is_told(clock: FakeClock) -> None:
    server = FakeServer(clock, max_restarts=2)
    server.failures = [LaunchError("first"), LaunchError("GRPC_PORT 8001 is in use")]
    _, error = watch(server, lambda: exits(server), *[nothing] * 50, expected=LaunchError)
    assert server.calls == ["kill", "restart", "restart"]
    assert error.startswith("GRPC_PORT 8001 is in use. Given up after 2 restarts")


def test_a_signal_ends_a_pause(clock: FakeClock) -> None:
    server = FakeServer(clock)
    watch(server, lambda: exits(server), nothing, nothing)  # idle raises at the third poll of the pause
    assert server.calls == ["kill"]


def test_it_says_what_it_is_busy_with(clock: FakeClock) -> None:
    server = FakeServer(clock)
    said: list[str] = []
    server.during_restart = lambda: said.append(watchdog.unready)
    watchdog = watchdog_of(server, lambda: exits(server), *[lambda: said.append(watchdog.unready)] * 6)
    with pytest.raises(Stop):
        watchdog.watch()
    # Five polls in the pause of a second, one in the restart itself, and one when it is over.
    assert said == ["the server is being restarted"] * 6 + [""]
    assert watchdog.unready == "the server is stopping"
    assert server.started[-1].closed


def test_it_lives_while_it_watches_or_restarts(clock: FakeClock) -> None:
    server = FakeServer(clock)
    server.restart_takes_s = 500
    lived: list[bool] = []
    server.during_restart = lambda: lived.append(watchdog.alive)
    steps = [lambda: exits(server), *[nothing] * 5, lambda: lived.append(watchdog.alive)]
    watchdog = watchdog_of(server, *steps)
    with pytest.raises(Stop):
        watchdog.watch()
    assert lived == [True, True]


def test_a_watch_that_hangs_is_dead(clock: FakeClock) -> None:
    watchdog = Watchdog(FakeServer(clock), nothing, clock)
    clock.now += MAX_SECONDS_BETWEEN_CHECKS - 0.1
    assert watchdog.alive
    clock.now += 0.1
    assert not watchdog.alive


def test_pauses_double_up_to_a_minute_then_it_gives_up() -> None:
    policy = RestartPolicy(max_restarts=9, window_s=600)
    assert [policy.next_pause(now=0) for _ in range(10)] == [1, 2, 4, 8, 16, 32, 60, 60, 60, None]


def test_a_quiet_window_begins_anew() -> None:
    policy = RestartPolicy(max_restarts=2, window_s=600)
    assert [policy.next_pause(now) for now in (0, 10, 599, 600, 601, 1_199)] == [1, 2, None, 2, None, 2]
    assert policy.next_pause(now=5_000) == 1
