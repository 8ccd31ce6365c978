"""The client's rules, without a network or a clock."""

import math
import pickle
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import InferenceServerException

from hiscore_client import (
    Cancelled,
    ChunkLimits,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    RetryPolicy,
    ServerFault,
    ServerUnreachable,
)
from hiscore_client.chunking import split_into_chunks
from hiscore_client.config import make_config
from hiscore_client.deadline import Deadline
from hiscore_client.errors import from_grpc
from hiscore_client.retry import call_with_retries
from hiscore_client.sans_io import Rpc, Sleep, run
from hiscore_client.score_call import ScoreOptions
from hiscore_client.tensors import as_id_array, encode_text, encode_texts, insert_delimiters

token_lists = st.lists(st.integers(0, 2**31 - 1), max_size=6)


@given(query=token_lists, items=st.lists(token_lists, max_size=8))
def test_layout_can_be_taken_apart_again(query: list[int], items: list[list[int]]) -> None:
    input_ids, delimiters = insert_delimiters(
        as_id_array("query", query), [as_id_array("item", item) for item in items]
    )
    assert input_ids.dtype == delimiters.dtype == np.int32
    assert delimiters[0] == len(query)
    assert delimiters[-1] == len(input_ids) - 1
    assert input_ids[: delimiters[0]].tolist() == query
    assert [input_ids[start + 1 : end].tolist() for start, end in pairwise(delimiters)] == items


@given(
    sizes=st.lists(st.integers(0, 30), max_size=40),
    fixed=st.integers(0, 20),
    max_items=st.integers(1, 6),
    max_size=st.integers(1, 60),
)
def test_chunks_cover_all_items_in_order_within_limits_and_no_sooner_cut_than_needed(
    sizes: list[int], fixed: int, max_items: int, max_size: int
) -> None:
    chunks = split_into_chunks(sizes, fixed, max_items, max_size)
    places = range(len(sizes))
    assert [place for chunk in chunks for place in places[chunk]] == list(places)

    def fits(held: list[int]) -> bool:
        return len(held) <= max_items and fixed + sum(held) <= max_size

    for chunk in chunks:
        assert fits(sizes[chunk]) or len(sizes[chunk]) <= 1
    for chunk, following in pairwise(chunks):
        assert not fits(sizes[chunk] + sizes[following][:1])


def test_no_items_are_one_empty_chunk() -> None:
    assert split_into_chunks([], 10, 5, 5) == [slice(0, 0)]


@pytest.mark.parametrize("bad", [{"max_items": 0}, {"max_bytes": 0}, {"max_tokens": -1}])
def test_limits_below_one_are_refused(bad: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        ChunkLimits(**bad)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([2**31], "largest int32"),
        ([-(2**31) - 1], "int32"),
        ([1.5], "flat list"),
        ([[1]], "flat list"),
        ([[1], [2, 3]], "flat list"),
        ([True], "flat list"),
        (["1"], "flat list"),
        (7, "flat list"),
        ([2**70], "flat list"),
    ],
)
def test_what_is_no_list_of_ids_is_refused_by_name(ids: object, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        as_id_array("'query_ids'", ids)  # type: ignore[arg-type]
    assert "'query_ids'" in str(caught.value)


def test_ids_may_be_empty_or_any_integer_array() -> None:
    assert as_id_array("ids", []).tolist() == []
    assert as_id_array("ids", np.array([1, 2], dtype=np.uint64)).tolist() == [1, 2]


def test_text_that_utf8_cannot_hold_is_refused_with_its_place() -> None:
    with pytest.raises(InvalidRequest, match=r"'items' at place 1 is not valid Unicode: .* at character 2"):
        encode_texts("items", ["fine", "ab\udc80"])
    with pytest.raises(InvalidRequest, match="must be a list of strings, not one string"):
        encode_texts("items", "apple")
    with pytest.raises(InvalidRequest, match="'query' must be a string, not bytes"):
        encode_text("'query'", b"apple")  # type: ignore[arg-type]


def test_only_options_off_their_defaults_are_sent() -> None:
    assert ScoreOptions().parameters() == {}
    sent = ScoreOptions(apply_softmax=True, temperature=2, item_first=True).parameters()
    assert sent == {"apply_softmax": True, "temperature": 2.0, "item_first": True}
    # tritonclient sends an int as int64, which the server would have to guess about.
    assert type(sent["temperature"]) is float


@pytest.mark.parametrize("temperature", [math.nan, math.inf, 0.0, -1.0])
def test_a_temperature_that_json_or_the_server_cannot_take_is_refused(temperature: float) -> None:
    with pytest.raises(InvalidRequest, match="'temperature'"):
        ScoreOptions(apply_softmax=True, temperature=temperature).parameters()


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf])
def test_a_timeout_must_be_finite_and_positive(timeout: float) -> None:
    with pytest.raises(InvalidRequest, match="'timeout'"):
        Deadline(timeout)


def test_address_from_argument_then_environment_then_default(monkeypatch: pytest.MonkeyPatch) -> None:
    def url(argument: str | None) -> str:
        return make_config(argument, None, None, 4, None).url

    monkeypatch.delenv("HISCORE_URL", raising=False)
    assert url(None) == "localhost:8001"
    monkeypatch.setenv("HISCORE_URL", "there:9")
    assert url(None) == "there:9"
    assert url("here:8") == "here:8"
    with pytest.raises(InvalidRequest, match="without a scheme"):
        url("http://here:8")


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [
        ("INVALID_ARGUMENT", "'items' holds 20000", InvalidRequest),
        ("UNAVAILABLE", "in ensemble 'score', Exceeds maximum queue size", Overloaded),
        ("UNAVAILABLE", "in ensemble 'score', Request timeout expired", DeadlineExceeded),
        ("DEADLINE_EXCEEDED", "Deadline Exceeded", DeadlineExceeded),
        ("CANCELLED", "Locally cancelled by application!", Cancelled),
        ("RESOURCE_EXHAUSTED", "CLIENT: Sent message larger than max (10 vs. 5)", InvalidRequest),
        ("RESOURCE_EXHAUSTED", "rate limit", Overloaded),
        ("INTERNAL", "internal error", ServerFault),
        ("NOT_FOUND", "unknown model", ServerFault),
    ],
)
def test_each_grpc_failure_has_its_exception(status: str, message: str, kind: type[Exception]) -> None:
    error = from_grpc(InferenceServerException(message, f"StatusCode.{status}"))
    assert type(error) is kind
    assert str(error) == message


def test_errors_keep_their_request_id_through_pickle() -> None:
    copy = pickle.loads(pickle.dumps(Overloaded("full", "id-1")))
    assert (type(copy), str(copy), copy.request_id) == (Overloaded, "full", "id-1")


class World:
    """A clock that only pauses and answers move, and a server that gives what it is told to."""

    def __init__(self, *answers: str, live: bool = True, seconds: float = 0.0) -> None:
        self.now = 100.0
        self.answers = list(answers)
        self.live = live
        self.seconds = seconds
        self.asked: list[float] = []
        self.pauses: list[float] = []

    def perform(self, step: Rpc | Sleep) -> str:
        if isinstance(step, Sleep):
            self.pauses.append(step.seconds)
            self.now += step.seconds
            return ""
        if step.method == "is_server_live":
            if not self.live:
                raise InferenceServerException("failed to connect", "StatusCode.UNAVAILABLE")
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


def test_unavailable_without_anyone_alive_is_unreachable() -> None:
    world = World(*["UNAVAILABLE failed to connect"] * 4, live=False)
    with pytest.raises(ServerUnreachable, match="host:1 is not reachable: failed to connect"):
        world.run()


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        ("UNAVAILABLE Request timeout expired", DeadlineExceeded),
        ("DEADLINE_EXCEEDED late", DeadlineExceeded),
        ("INVALID_ARGUMENT bad", InvalidRequest),
        ("RESOURCE_EXHAUSTED rate limit", Overloaded),
        ("CANCELLED gone", Cancelled),
        ("INTERNAL broken", ServerFault),
    ],
)
def test_nothing_else_is_tried_again(answer: str, kind: type[Exception]) -> None:
    world = World(answer, "OK")
    with pytest.raises(kind):
        world.run()
    assert world.answers == ["OK"]
    assert world.pauses == []


def test_each_try_gets_the_time_that_is_left() -> None:
    world = World("UNAVAILABLE full", "UNAVAILABLE full", "OK", seconds=0.5)
    assert world.run(timeout=10.0) == "OK"
    assert world.asked == [10.0, 8.5, 6.0]


def test_no_pause_reaches_past_the_deadline() -> None:
    world = World("UNAVAILABLE full", "UNAVAILABLE full", "OK", seconds=0.5)
    with pytest.raises(Overloaded):
        world.run(timeout=4.0)
    assert world.pauses == [1.0]
    assert world.now <= 104.0


def test_a_deadline_that_has_passed_sends_nothing() -> None:
    world = World("UNAVAILABLE full", "OK", seconds=0.0)
    policy = RetryPolicy(attempts=2, first_pause=0.0)

    def late(step: Rpc | Sleep) -> str:
        world.now += 5.0
        return world.perform(step)

    steps = call_with_retries(
        lambda remaining: Rpc("infer", {"remaining": remaining}),
        Deadline(6.0, lambda: world.now),
        policy,
        "host:1",
        "id-1",
    )
    with pytest.raises(DeadlineExceeded, match=r"timeout of 6.0 s has passed"):
        run(steps, late)
    assert world.answers == ["OK"]


@pytest.mark.parametrize("bad", [{"attempts": 0}, {"first_pause": -1.0}, {"longest_pause": -1.0}])
def test_a_policy_that_makes_no_sense_is_refused(bad: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="at least"):
        RetryPolicy(**bad)  # type: ignore[arg-type]
