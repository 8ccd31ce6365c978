"""Waiting for a server, without a network or a clock."""

from types import SimpleNamespace
from typing import Any

import pytest
from tritonclient.utils import InferenceServerException

from hiscore_client import DeadlineExceeded, HiscoreError, ServerFault, ServerUnreachable
from hiscore_client.deadline import Deadline
from hiscore_client.readiness import TENSORS, wait_ready
from hiscore_client.sans_io import Rpc, Sleep, run


class World:
    """A server that gives the answers it is told to, the last one for ever; only pauses move the clock."""

    def __init__(self, *answers: Any, tensors: Any = None) -> None:
        self.answers = list(answers)
        self.tensors = TENSORS["score"] if tensors is None else tensors
        self.now = 0.0
        self.polled: list[tuple[str, str, float | None]] = []
        self.pauses: list[float] = []

    def perform(self, step: Rpc | Sleep) -> Any:
        if isinstance(step, Sleep):
            self.pauses.append(step.seconds)
            self.now += step.seconds
            return None
        model, timeout = step.arguments["model_name"], step.arguments["client_timeout"]
        self.polled.append((step.method, model, timeout))
        if step.method == "get_model_metadata":
            tensors = [SimpleNamespace(name=name, datatype=kind) for name, kind in self.tensors]
            return SimpleNamespace(inputs=tensors[:1], outputs=tensors[1:])
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, str):
            raise InferenceServerException(f"says {answer}", f"StatusCode.{answer}")
        return answer

    def run(self, *models: str, timeout: float | None = 10.0) -> None:
        run(wait_ready(models or ("score",), Deadline(timeout, lambda: self.now), "host:1"), self.perform)


def test_it_polls_less_and_less_often_until_all_models_are_ready() -> None:
    world = World("UNAVAILABLE", False, True, False, *[False] * 9, True)
    world.run("score", "scorer2", timeout=60.0)
    assert world.pauses[:3] == pytest.approx([0.05, 0.075, 0.1125])
    assert world.pauses[-1] == 1.0
    assert max(world.pauses) == 1.0
    assert [model for method, model, _ in world.polled if method == "get_model_metadata"] == [
        "score",
        "scorer2",
    ]


@pytest.mark.parametrize(
    ("answers", "kind", "reason"),
    [
        # Nothing has ever answered.
        (["UNAVAILABLE"], ServerUnreachable, "says UNAVAILABLE"),
        (["DEADLINE_EXCEEDED"], ServerUnreachable, "says DEADLINE_EXCEEDED"),
        # It answers, but the model is not ready.
        ([False], DeadlineExceeded, "model 'score' is not ready"),
        (["NOT_FOUND"], DeadlineExceeded, "says NOT_FOUND"),
        # It has answered and is busy: still not unreachable.
        ([False, "DEADLINE_EXCEEDED"], DeadlineExceeded, "model 'score' is not ready"),
        (["UNAVAILABLE", "NOT_FOUND", "DEADLINE_EXCEEDED"], DeadlineExceeded, "model 'score' is not ready"),
        # It has answered and gone away.
        ([False, "UNAVAILABLE"], ServerUnreachable, "says UNAVAILABLE"),
        ([False, "UNAVAILABLE", "DEADLINE_EXCEEDED"], ServerUnreachable, "says DEADLINE_EXCEEDED"),
    ],
)
def test_an_unreachable_server_is_told_from_one_that_is_busy_or_not_ready(
    answers: list[Any], kind: type[HiscoreError], reason: str
) -> None:
    world = World(*answers)
    with pytest.raises(kind, match=f"^host:1 is not ready after 10.0 s: {reason}$") as raised:
        world.run()
    assert type(raised.value) is kind
    assert world.now <= 10.0


def test_a_second_model_that_times_out_does_not_make_the_server_unreachable() -> None:
    with pytest.raises(DeadlineExceeded, match="model 'scorer' is not ready"):
        World(True, "DEADLINE_EXCEEDED", True, "DEADLINE_EXCEEDED").run("score", "scorer", timeout=0.06)


def test_no_request_may_outlast_the_wait_or_five_seconds() -> None:
    world = World(False)
    with pytest.raises(DeadlineExceeded):
        world.run(timeout=7.0)
    timeouts = [timeout for _, _, timeout in world.polled]
    assert timeouts[0] == 5.0
    assert 0.0 < timeouts[-1] < 1.0
    world = World(True)
    world.run(timeout=None)
    assert world.polled[0] == ("is_model_ready", "score", 5.0)


def test_a_request_behind_the_deadline_still_has_a_millisecond() -> None:
    """A timeout of zero or less would fail before the request is even sent."""
    now = 0.0
    operation = wait_ready(["score", "scorer"], Deadline(1.0, lambda: now), "host:1")
    next(operation)
    now = 2.0
    second = operation.send(True)
    assert isinstance(second, Rpc)
    assert second.arguments == {"model_name": "scorer", "client_timeout": 0.001}


@pytest.mark.parametrize("missing", sorted(TENSORS["score"]))
def test_a_model_without_a_tensor_is_not_hiscores(missing: tuple[str, str]) -> None:
    world = World(True, tensors=sorted(TENSORS["score"] - {missing}))
    with pytest.raises(ServerFault, match=f"'score' has no {missing[1]} tensor '{missing[0]}'"):
        world.run()


def test_models_that_the_sdk_does_not_call_need_no_tensors() -> None:
    World(True, tensors=[]).run("tokenizer")
