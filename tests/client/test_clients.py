"""Both clients against a real gRPC endpoint; each test runs once per twin."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

import hiscore_client
from hiscore_client import (
    AsyncScoreClient,
    Cancelled,
    ChunkLimits,
    DeadlineExceeded,
    HiscoreError,
    InvalidRequest,
    Overloaded,
    RetryPolicy,
    ScoreClient,
    ServerFault,
    ServerUnreachable,
)
from tests.client.faulty_server import FaultyServer, abort, checksum, until_cancelled, when
from tests.support.timeouts import TIMEOUT_S, wait_until

QUICK = RetryPolicy(attempts=3, first_pause=0.01)
FULL = abort("UNAVAILABLE", "in ensemble 'score', Exceeds maximum queue size")
ITEMS = [f"item {place}" for place in range(50)]
LABELS = [" Yes", " No"]


class Twin:
    """Calls a method of a fresh client, the same way for both clients."""

    def __init__(self, asynchronous: bool, url: str) -> None:
        self.asynchronous = asynchronous
        self.url = url

    def __call__(self, method: str, *args: Any, client: dict[str, Any] | None = None, **options: Any) -> Any:
        settings = {"url": self.url, "retry": QUICK, **(client or {})}
        if not self.asynchronous:
            with ScoreClient(**settings) as blocking:
                return getattr(blocking, method)(*args, **options)

        async def call() -> Any:
            async with AsyncScoreClient(**settings) as client:
                return await getattr(client, method)(*args, **options)

        return asyncio.run(call())


@pytest.fixture(params=["sync", "async"])
def twin(request: pytest.FixtureRequest, url: str) -> Twin:
    return Twin(request.param == "async", url)


@pytest.fixture(params=["sync", "async"])
def dead_twin(request: pytest.FixtureRequest, dead_url: str) -> Twin:
    return Twin(request.param == "async", dead_url)


def expected(query: str, items: list[str], labels: list[str]) -> np.ndarray:
    scores = [[checksum(query.encode(), item.encode(), label.encode()) for label in labels] for item in items]
    return np.array(scores, dtype=np.float32).reshape(len(items), len(labels))


def expected_ids(query: list[int], items: list[list[int]], labels: list[int]) -> np.ndarray:
    return expected(repr(query), [repr(item) for item in items], [str(label) for label in labels])


def test_text_goes_out_and_typed_scores_come_back(twin: Twin, server: FaultyServer) -> None:
    result = twin("score", "Frage, größer?", ["Äpfel", "", "🍎"], labels=LABELS, request_id="mine")
    np.testing.assert_array_equal(result.scores, expected("Frage, größer?", ["Äpfel", "", "🍎"], LABELS))
    assert result.scores.dtype == np.float32
    assert result.scores.flags.writeable
    assert result.usage == hiscore_client.Usage(
        prompt_tokens=len("Frage, größer?Äpfel🍎".encode()), cached_tokens=1
    )
    assert result.request_id == "mine"
    (request,) = server.requests
    assert request.model_name == "score"
    assert request.id == "mine"
    assert dict(request.parameters) == {}


def test_ids_are_laid_out_and_scored(twin: Twin, server: FaultyServer) -> None:
    result = twin("score_ids", [1, 2], [[3], [], [4, 5]], [7, 8, 9])
    np.testing.assert_array_equal(result.scores, expected_ids([1, 2], [[3], [], [4, 5]], [7, 8, 9]))
    assert result.usage.prompt_tokens == 5
    (request,) = server.requests
    assert [(tensor.name, list(tensor.shape)) for tensor in request.inputs] == [
        ("input_ids", [1, 9]),
        ("delimiter_indices", [1, 4]),
        ("label_token_ids", [1, 3]),
    ]


def test_labels_may_be_ids_and_a_classifier_needs_none(twin: Twin, server: FaultyServer) -> None:
    result = twin("score", "q", ["a"], label_token_ids=np.array([7, 8]))
    np.testing.assert_array_equal(result.scores, expected("q", ["a"], ["7", "8"]))

    def classifier(outputs: dict[str, np.ndarray]) -> None:
        outputs["scores"] = np.array([[[0.5, -1.5, 2.0]]], dtype=np.float32)

    server.change = classifier
    assert twin("score", "q", ["a"]).scores.tolist() == [[0.5, -1.5, 2.0]]
    assert twin("score_ids", [1], [[2]]).scores.tolist() == [[0.5, -1.5, 2.0]]
    assert {tensor.name for tensor in server.requests[1].inputs} == {"query", "items"}
    assert list(server.requests[2].inputs[2].shape) == [1, 0]


def test_labels_of_their_own_go_with_their_items_into_chunks(twin: Twin) -> None:
    texts, items, own = ["a", "b", "c"], [[1], [2], [3]], [[7, 8, 9], [8, 5], [1, 2, 3, 4]]
    flat, counts = [label for labels in own for label in labels], [len(labels) for labels in own]
    options = {"label_counts": counts, "client": {"limits": ChunkLimits(max_items=2)}}
    by_text = twin("score", "q", texts, label_token_ids=flat, **options).scores
    by_ids = twin("score_ids", [5], items, flat, **options).scores
    for row, labels in enumerate(own):
        rest = [0] * (max(counts) - len(labels))
        (of_text,) = expected("q", [texts[row]], [str(label) for label in labels])
        (of_ids,) = expected_ids([5], [items[row]], labels)
        np.testing.assert_array_equal(by_text[row], [*of_text, *rest])
        np.testing.assert_array_equal(by_ids[row], [*of_ids, *rest])


def test_labels_of_several_tokens_go_with_their_items_into_chunks(twin: Twin, server: FaultyServer) -> None:
    texts, items, ids = ["a", "b", "c"], [[1], [2], [3]], [7, 8, 9, 5, 6, 4]
    options = {"label_lengths": np.array([2, 1, 2, 1]), "label_counts": [2, 1, 1], "log_scores": True}
    options |= {"normalize": "tokens", "client": {"limits": ChunkLimits(max_items=2)}}
    rows = [["7+8", "9"], ["5+6"], ["4"]]
    by_text = twin("score", "q", texts, label_token_ids=ids, **options).scores
    by_ids = twin("score_ids", [5], items, ids, token_logprobs=3, **options).scores
    for row, labels in enumerate(rows):
        rest = [0] * (2 - len(labels))
        np.testing.assert_array_equal(by_text[row], [*expected("q", [texts[row]], labels)[0], *rest])
        np.testing.assert_array_equal(by_ids[row], [*expected_ids([5], [items[row]], labels)[0], *rest])
    sent = server.requests[-1].parameters
    assert sent["log_scores"].bool_param
    assert sent["normalize"].string_param == "tokens"
    assert sent["token_logprobs"].int64_param == 3
    with pytest.raises(InvalidRequest, match="adds up to 3, but 2 tokens were given"):
        twin("score_ids", [5], items, [7, 8], label_lengths=[1, 2])


def test_adapters_go_with_their_items_into_chunks(twin: Twin, server: FaultyServer) -> None:
    names, options = ["harm", "", "tone"], {"client": {"limits": ChunkLimits(max_items=2)}}
    server.change = lambda outputs: outputs.update(
        # The second chunk is read by a head of its own.
        scores=np.ones((1, outputs["scores"].shape[1], 3 - outputs["scores"].shape[1]), np.float32)
    )
    found = twin("score_ids", [5], [[1], [2], [3]], item_adapters=names, **options)
    assert found.scores.tolist() == [[1, 0], [1, 0], [1, 1]]
    sent = [json.loads(each.parameters["item_adapters"].string_param) for each in server.requests[-2:]]
    assert sorted(sent) == [["harm", ""], ["tone"]]
    server.change = lambda outputs: None
    twin("score", "q", ["a"], labels=["b"], adapter="harm")
    assert server.requests[-1].parameters["adapter"].string_param == "harm"
    with pytest.raises(InvalidRequest, match="holds 1 names for 2 items"):
        twin("score", "q", ["a", "b"], labels=["c"], item_adapters=["harm"])


def test_no_items_give_an_empty_result(twin: Twin) -> None:
    assert twin("score", "q", [], labels=LABELS).scores.shape == (0, 2)
    assert twin("score_ids", [1], [], [7]).scores.shape == (0, 1)


def test_options_priority_deadline_and_headers_are_on_the_wire(twin: Twin, server: FaultyServer) -> None:
    options = {"apply_softmax": True, "raw_logits": True, "temperature": 2, "item_first": True}
    twin(
        "score",
        "q",
        ["a"],
        labels=LABELS,
        **options,
        priority=1,
        timeout=1_000,
        client={"headers": {"authorization": "Bearer x"}},
    )
    sent = server.requests[0].parameters
    assert sent["apply_softmax"].bool_param is True
    assert sent["raw_logits"].bool_param is True
    assert sent["temperature"].double_param == 2.0
    assert sent["item_first"].bool_param is True
    assert sent["priority"].uint64_param == 1
    # Microseconds; what is missing of 1,000 s is what the client itself took.
    assert 500e6 < sent["timeout"].int64_param <= 1_000e6
    assert set(sent) == {*options, "priority", "timeout"}
    assert server.metadata[0]["authorization"] == "Bearer x"


def test_a_large_call_is_split_in_flight_together_and_put_back_in_order(
    twin: Twin, server: FaultyServer
) -> None:
    # None of the first two is answered before both are there.
    server.faults.extend([when(lambda: server.most_running >= 2)] * 2)
    progress: list[int] = []
    settings = {"limits": ChunkLimits(max_items=7), "max_in_flight": 3}
    result = twin(
        "score", "q", ITEMS, labels=LABELS, request_id="big", on_progress=progress.append, client=settings
    )
    np.testing.assert_array_equal(result.scores, expected("q", ITEMS, LABELS))
    assert sorted(request.id for request in server.requests) == [f"big/{place}" for place in range(8)]
    assert 2 <= server.most_running <= 3
    assert progress == sorted(progress)
    assert progress[-1] == 50
    assert result.usage.prompt_tokens == 8 * len("q") + len("".join(ITEMS))
    assert result.request_id == "big"


def test_messages_beyond_grpcs_own_limit_of_four_megabytes_pass(twin: Twin, server: FaultyServer) -> None:
    scores = np.arange(1_500_000, dtype=np.float32).reshape(1, 1, -1)
    server.change = lambda outputs: outputs.update(scores=scores)
    item = "x" * (5 * 2**20)
    result = twin("score", "q", [item], client={"limits": ChunkLimits(max_bytes=2**24)})
    np.testing.assert_array_equal(result.scores, scores[0])
    assert len(server.requests[0].raw_input_contents[1]) > 4 * 2**20


def test_each_chunk_has_its_own_tries(twin: Twin, server: FaultyServer) -> None:
    server.faults.extend([FULL, FULL])
    result = twin("score", "q", ITEMS, labels=LABELS, client={"limits": ChunkLimits(max_items=10)})
    np.testing.assert_array_equal(result.scores, expected("q", ITEMS, LABELS))
    assert len(server.requests) == 7


def test_a_server_that_stays_full_is_overloaded_not_unreachable(twin: Twin, server: FaultyServer) -> None:
    server.faults.extend([FULL] * 3)
    with pytest.raises(Overloaded, match="Exceeds maximum queue size") as caught:
        twin("score", "q", ["a"], labels=LABELS, request_id="mine")
    assert caught.value.request_id == "mine"
    assert len(server.requests) == 3


def test_no_server_is_unreachable(dead_twin: Twin, dead_url: str) -> None:
    with pytest.raises(ServerUnreachable, match=f"{dead_url} is not reachable") as caught:
        dead_twin("score", "q", ["a"], labels=LABELS, request_id="mine")
    assert caught.value.request_id == "mine"


@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("INVALID_ARGUMENT", "'labels' holds ' maybe so': not one token", InvalidRequest),
        ("UNAVAILABLE", "in ensemble 'score', Request timeout expired", DeadlineExceeded),
        ("CANCELLED", "the request was cancelled", Cancelled),
        ("INTERNAL", "internal error, see the server's log", ServerFault),
    ],
)
@pytest.mark.parametrize("items", [["a"], ITEMS], ids=["one request", "chunks"])
def test_failures_become_exceptions_with_an_id_and_are_not_tried_again(
    twin: Twin, server: FaultyServer, code: str, message: str, kind: type[HiscoreError], items: list[str]
) -> None:
    server.faults.append(abort(code, message))
    settings = {"limits": ChunkLimits(max_items=30), "max_in_flight": 1}
    with pytest.raises(kind) as caught:
        twin("score", "q", items, labels=LABELS, request_id="mine", client=settings)
    assert type(caught.value) is kind
    assert str(caught.value) == message
    assert caught.value.request_id == "mine"
    assert len({request.id for request in server.requests}) == len(server.requests)


def test_a_slow_server_meets_the_deadline(twin: Twin, server: FaultyServer) -> None:
    server.faults.append(until_cancelled)
    with pytest.raises(DeadlineExceeded, match=r"the timeout of 0.2 s has passed"):
        twin("score", "q", ["a"], labels=LABELS, timeout=0.2)


def test_the_deadline_is_of_all_chunks_together(twin: Twin, server: FaultyServer) -> None:
    server.work_seconds = 0.02
    settings = {"limits": ChunkLimits(max_items=1), "max_in_flight": 2}
    with pytest.raises(DeadlineExceeded):
        twin("score", "q", ITEMS, labels=LABELS, timeout=0.2, client=settings)
    # All 50 would take at least half a second.
    assert len(server.requests) < 50


def test_one_failed_chunk_cancels_the_others(twin: Twin, server: FaultyServer) -> None:
    # Without the cancellation the call would never end.
    server.faults.extend([until_cancelled, until_cancelled, abort("INVALID_ARGUMENT", "bad item")])
    settings = {"limits": ChunkLimits(max_items=10), "max_in_flight": 3}
    with pytest.raises(InvalidRequest, match="bad item"):
        twin("score", "q", ITEMS, labels=LABELS, client=settings)
    wait_until(lambda: server.cancelled == 2)
    assert len(server.requests) == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda outputs: outputs.pop("usage"), "no 'usage'"),
        (lambda outputs: outputs.update(scores=outputs["scores"][:, :-1]), "for 3 items"),
        (lambda outputs: outputs.update(scores=outputs["scores"][0]), "for 3 items"),
        (lambda outputs: outputs.update(scores=outputs["scores"].astype(np.float64)), "float64"),
        (lambda outputs: outputs.update(scores=outputs["scores"][:, :, :1]), "1 columns for 2 labels"),
        (
            lambda outputs: outputs.update(scores=outputs["scores"].repeat(2, axis=2)),
            "4 columns for 2 labels",
        ),
        (lambda outputs: outputs.update(usage=outputs["usage"][:, :1]), "'usage' is int32"),
    ],
)
def test_an_answer_of_the_wrong_shape_is_a_server_fault_not_a_wrong_score(
    twin: Twin, server: FaultyServer, change: Callable[[dict[str, np.ndarray]], Any], message: str
) -> None:
    server.change = change
    with pytest.raises(ServerFault, match=message):
        twin("score", "q", ["a", "b", "c"], labels=LABELS)


@pytest.mark.parametrize(
    ("args", "options"),
    [
        (("q", "apple"), {}),
        (("q", ["a", 1]), {}),
        (("q\ud800", ["a"]), {}),
        (("q", ["a"]), {"temperature": float("nan")}),
        (("q", ["a"]), {"timeout": 0}),
        (("q", ["a"]), {"label_token_ids": [2**31]}),
        (("q", ["a"]), {"priority": -1}),
    ],
)
def test_what_cannot_be_sent_is_refused_here_with_the_request_id(
    twin: Twin, server: FaultyServer, args: tuple[Any, ...], options: dict[str, Any]
) -> None:
    with pytest.raises(InvalidRequest) as caught:
        twin("score", *args, request_id="mine", **options)
    assert caught.value.request_id == "mine"
    assert server.requests == []


def test_wait_ready_returns_once_the_models_are(twin: Twin, server: FaultyServer) -> None:
    server.ready, server.ready_after = {"scorer"}, 3
    twin("wait_ready", timeout=TIMEOUT_S, models=("scorer",))
    assert server.ready_after < 0


def test_wait_ready_ends_with_its_timeout(dead_twin: Twin) -> None:
    with pytest.raises(ServerUnreachable, match=r"not ready after 0\.1 s"):
        dead_twin("wait_ready", timeout=0.1)


def test_a_closed_client_says_so(url: str) -> None:
    client = ScoreClient(url, limits=ChunkLimits(max_items=10))
    client.close()
    for items in (["a"], ITEMS):
        with pytest.raises(Cancelled, match="closed"):
            client.score("q", items, labels=LABELS)


def test_closing_ends_calls_of_other_threads(url: str, server: FaultyServer) -> None:
    server.faults.append(until_cancelled)
    client = ScoreClient(url)
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.score, "q", ["a"], labels=LABELS)
        wait_until(lambda: server.running == 1)
        client.close()
        with pytest.raises(Cancelled):
            call.result(timeout=TIMEOUT_S)


def test_closing_wakes_a_call_that_waits_to_try_again(url: str, server: FaultyServer) -> None:
    server.faults.append(FULL)
    client = ScoreClient(url, retry=RetryPolicy(first_pause=60, longest_pause=60))
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(client.score, "q", ["a"], labels=LABELS)
        wait_until(lambda: len(server.requests) == 1 and server.running == 0)
        client.close()
        with pytest.raises(Cancelled):
            call.result(timeout=TIMEOUT_S)


async def test_closing_ends_calls_of_other_tasks(url: str, server: FaultyServer) -> None:
    server.faults.append(until_cancelled)
    client = AsyncScoreClient(url)
    call = asyncio.ensure_future(client.score("q", ["a"], labels=LABELS))
    await asyncio.to_thread(wait_until, lambda: server.running == 1)
    await client.close()
    with pytest.raises(Cancelled):
        await asyncio.wait_for(call, TIMEOUT_S)


async def test_cancelling_a_task_cancels_its_requests(url: str, server: FaultyServer) -> None:
    server.faults.extend([until_cancelled] * 3)
    async with AsyncScoreClient(url, limits=ChunkLimits(max_items=10), max_in_flight=3) as client:
        call = asyncio.ensure_future(client.score("q", ITEMS, labels=LABELS))
        await asyncio.to_thread(wait_until, lambda: server.running == 3)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.to_thread(wait_until, lambda: server.cancelled == 3)
    assert len(server.requests) == 3


async def test_tasks_share_an_async_client(url: str) -> None:
    async with AsyncScoreClient(url) as client:
        calls: list[Awaitable[Any]] = [client.score(f"q{n}", ITEMS, labels=LABELS) for n in range(20)]
        for n, result in enumerate(await asyncio.gather(*calls)):
            np.testing.assert_array_equal(result.scores, expected(f"q{n}", ITEMS, LABELS))


def test_threads_share_a_client(url: str) -> None:
    with ScoreClient(url, limits=ChunkLimits(max_items=20)) as client, ThreadPoolExecutor(8) as pool:
        calls = [pool.submit(client.score, f"q{n}", ITEMS, labels=LABELS) for n in range(20)]
        for n, call in enumerate(calls):
            np.testing.assert_array_equal(call.result().scores, expected(f"q{n}", ITEMS, LABELS))


def test_all_public_names_exist_and_nothing_else_is_promised() -> None:
    assert all(hasattr(hiscore_client, name) for name in hiscore_client.__all__)
    assert hiscore_client.__all__ == sorted(hiscore_client.__all__)
