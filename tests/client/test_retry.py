"""Retries and deadlines, without a network or a clock."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from hiscore_client import (
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    RetryPolicy,
)
from hiscore_client.deadline import Deadline
from hiscore_client.retry import call_with_retries
from hiscore_client.sans_io import Rpc, Sleep, run


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf])
def test_a_timeout_must_be_finite_and_positive(timeout: float) -> None:
    with pytest.raises(InvalidRequest, match="'timeout'"):
        Deadline(timeout)


class World:
    """A clock that only pauses and answers move, and a server that gives what it is told to."""

    def __init__(self, *answers: str, liveness: str = "OK", seconds: float = 0.0) -> None:
        self.now = 100.0
        self.answers = list(answers)
        self.liveness = liveness
        self.liveness_timeouts: list[float] = []
        self.seconds = seconds
        self.asked: list[float] = []
        self.pauses: list[float] = []

    def perform(self, step: Rpc | Sleep) -> str:
        if isinstance(step, Sleep):
            self.pauses.append(step.seconds)
            self.now += step.seconds
            return ""
        if step.method == "is_server_live":
            self.liveness_timeouts.append(step.arguments["client_timeout"])
            if self.liveness != "OK":
                raise InferenceServerException("no answer", f"StatusCode.{self.liveness}")
            return "alive"
        self.asked.append(step.arguments["remaining"])
        self.now += self.seconds
        answer = self.answers.pop(0)
        if answer == "OK":
            return answer
        status, _, message = answer.partition(" ")
        raise InferenceServerException(message, f"StatusCode.{status}")

    def run(
        self,
        timeout: float | None = None,
        policy: RetryPolicy | None = None,
        jitter: Callable[[], float] = lambda: 1.0,
    ) -> object:
        steps = call_with_retries(
            lambda remaining: Rpc("infer", {"remaining": remaining}),
            Deadline(timeout, lambda: self.now),
            policy or RetryPolicy(attempts=4, first_pause=1.0, longest_pause=3.0),
            "host:1",
            "id-1",
            jitter,
        )
        return run(steps, self.perform)


def test_retries_pause_twice_as_long_each_time_up_to_a_bound() -> None:
    world = World("UNAVAILABLE full", "UNAVAILABLE full", "UNAVAILABLE full", "OK")
    assert world.run() == "OK"
    assert world.pauses == [1.0, 2.0, 3.0]
    assert world.asked == [math.inf] * 4


@given(failures=st.integers(1, 2000), jitter=st.floats(0, 1))
def test_jitter_takes_at_most_half_of_a_pause(failures: int, jitter: float) -> None:
    policy = RetryPolicy(first_pause=0.2, longest_pause=5.0)
    bound = policy.pause(failures, lambda: 1.0)
    assert bound <= 5.0
    assert bound / 2 <= policy.pause(failures, lambda: jitter) <= bound


def test_the_last_failure_is_raised_when_tries_run_out() -> None:
    world = World("UNAVAILABLE full", "UNAVAILABLE full", "UNAVAILABLE full", "UNAVAILABLE still full", "OK")
    with pytest.raises(Overloaded, match="still full"):
        world.run()
    assert world.answers == ["OK"]


def test_a_server_too_busy_for_its_liveness_check_is_overloaded_not_unreachable() -> None:
    world = World(*["UNAVAILABLE full"] * 4, liveness="DEADLINE_EXCEEDED")
    with pytest.raises(Overloaded, match=r"^full$"):
        world.run()
    assert world.liveness_timeouts == [2.0]


def test_the_liveness_check_ends_by_the_deadline_and_is_skipped_after_it() -> None:
    world = World("UNAVAILABLE full", seconds=9.5)
    with pytest.raises(Overloaded):
        world.run(timeout=10.0)
    assert world.liveness_timeouts == [0.5]
    world = World("UNAVAILABLE failed to connect", liveness="UNAVAILABLE", seconds=10.0)
    with pytest.raises(Overloaded):
        world.run(timeout=10.0)
    assert world.liveness_timeouts == []


def test_a_pause_as_long_as_the_rest_of_the_time_is_not_started() -> None:
    world = World("UNAVAILABLE full", "OK")
    with pytest.raises(Overloaded):
        world.run(timeout=1.0)
    assert world.pauses == []


def test_a_deadline_can_be_extended_and_still_names_its_timeout() -> None:
    deadline = Deadline(3.0, lambda: 10.0)
    assert deadline.extended(2.0).remaining() == 5.0
    assert deadline.extended(2.0).timeout == 3.0
    assert deadline.remaining() == 3.0
    assert Deadline(None).remaining() == Deadline(None).extended(1.0).remaining() == math.inf


def test_each_try_gets_the_time_that_is_left() -> None:
    world = World("UNAVAILABLE full", "UNAVAILABLE full", "OK", seconds=0.5)
    assert world.run(timeout=10.0) == "OK"
    assert world.asked == [10.0, 8.5, 6.0]


@pytest.mark.parametrize("timeout", [6.0, 10.0])  # 10.0: it ends just as the next try would begin
def test_a_deadline_that_has_passed_sends_nothing(timeout: float) -> None:
    world = World("UNAVAILABLE full", "OK", seconds=0.0)
    policy = RetryPolicy(attempts=2, first_pause=0.0)

    def late(step: Rpc | Sleep) -> str:
        world.now += 5.0
        return world.perform(step)

    steps = call_with_retries(
        lambda remaining: Rpc("infer", {"remaining": remaining}),
        Deadline(timeout, lambda: world.now),
        policy,
        "host:1",
        "id-1",
    )
    with pytest.raises(DeadlineExceeded, match=f"timeout of {timeout} s has passed"):
        run(steps, late)
    assert world.answers == ["OK"]


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"first_pause": -1.0}, {"longest_pause": -1.0}])
def test_a_policy_that_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at least"):
        RetryPolicy(**bad)  # type: ignore[arg-type]
