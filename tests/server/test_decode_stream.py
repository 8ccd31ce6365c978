"""`decode` behind a real tritonserver: streams over gRPC and HTTP, bad input, cancellation, deadlines, metrics."""

import json
import re
import shutil
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import AutoTokenizer

from hiscore.decoding.engine.stats import GAUGES
from hiscore.launcher import Server
from hiscore_client import ScoreClient
from tests.server import counters
from tests.server.conftest import StartServer, settings_of
from tests.server.generation import WAYS, Generation, grpc_stream, http_stream, over_grpc
from tests.server.leftovers import leftovers
from tests.server.wire import Refused
from tests.support.timeouts import TIMEOUT_S, wait_until
from tests.support.tiny_models import VOCABULARY

pytestmark = pytest.mark.server

PROMPT = [11, 12, 13, 14, 15]
CONTEXT = 2**15
LONG: dict[str, Any] = {"max_tokens": 30_000, "ignore_eos": True}
"""Longer than what any test does meanwhile: a minute of work or more."""
STREAMS, QUEUE, MANY = 4, 3, 64


@pytest.fixture(scope="module")
def decode(start_server: StartServer, tiny_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> Server:
    """The small random causal LM, with room for `LONG`, few sequences and a short queue."""
    long = tmp_path_factory.mktemp("long") / "lm"
    shutil.copytree(tiny_lm, long)
    config = json.loads((long / "config.json").read_text())
    (long / "config.json").write_text(json.dumps(config | {"max_position_embeddings": CONTEXT}))
    return start_server(long, models="decode", max_streams=STREAMS, max_queue=QUEUE, host_kv_bytes=2**28)


@pytest.fixture(autouse=True)
def _nothing_is_left_over(request: pytest.FixtureRequest) -> Iterator[None]:
    """After each test nothing runs, waits or holds memory."""
    yield
    if "decode" in request.fixturenames:
        server = request.getfixturevalue("decode")
        wait_until(lambda: not any(gauges(server).values()), lambda: gauges(server))


def gauges(server: Server) -> dict[str, int]:
    return {
        name: value
        for (model, name), value in counters.read(server).items()
        if model == "decode" and name in GAUGES
    }


def present(server: Server) -> int:
    """Calls that wait or run; a waiting one may preempt one that has run for long."""
    found = gauges(server)
    return sum(
        found[f"hiscore_decode_{stage}"] for stage in ("waiting", "prefilling", "running", "preempted")
    )


def text_of(tiny_lm: Path, ids: list[int]) -> str:
    return str(AutoTokenizer.from_pretrained(tiny_lm).decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize("way", WAYS)
def test_a_prompt_in_ids_streams_tokens_and_their_text(decode: Server, tiny_lm: Path, way: str) -> None:
    generation = WAYS[way](decode, {"input_ids": PROMPT}, max_tokens=40, ignore_eos=True)
    assert len(generation.ids) == 40
    assert generation.reason == "length"
    assert generation.text == text_of(tiny_lm, generation.ids)
    # Tokens arrive while others are still to be computed.
    assert len(generation.responses) > 1
    if way == "grpc":
        lasts = [response.last for response in generation.responses]
        assert lasts == [False] * (len(lasts) - 1) + [True]


def test_all_ways_give_the_same(decode: Server, tiny_lm: Path) -> None:
    text = "Is this a fruit? It is"
    ids = AutoTokenizer.from_pretrained(tiny_lm)(text)["input_ids"]
    options = {"max_tokens": 16, "ignore_eos": True}
    generations = [way(decode, {"input_ids": ids}, **options) for way in WAYS.values()]
    generations += [way(decode, {"text_input": text}, **options) for way in WAYS.values()]
    assert len(generations[0].ids) == 16
    assert {(tuple(each.ids), each.text) for each in generations} == {
        (tuple(generations[0].ids), generations[0].text)
    }


def test_sampling_repeats_with_its_seed_whatever_else_runs(decode: Server) -> None:
    drawn = {"max_tokens": 24, "temperature": 2.0, "top_k": 50, "top_p": 0.95, "ignore_eos": True}
    alone = [over_grpc(decode, {"input_ids": PROMPT}, seed=seed, **drawn).ids for seed in (1, 2)]
    assert alone[0] != alone[1]
    with ThreadPoolExecutor(STREAMS) as pool:
        together = list(
            pool.map(
                lambda seed: over_grpc(decode, {"input_ids": PROMPT}, seed=seed, **drawn).ids, [1, 2, 1, 2]
            )
        )
    assert together == alone * 2


INVALID = "INVALID_ARGUMENT"
# Inputs, parameters, and what the message must say.
OF_VOCABULARY = rf"holds {VOCABULARY}: .* 0 to {VOCABULARY - 1}"
OF_CONTEXT = rf"at most {CONTEXT} \(MAX_CONTEXT\)"
IDS = {"input_ids": PROMPT}
BAD: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "neither input": ({}, {}, r"exactly one of 'input_ids' and 'text_input' is needed"),
    "an id beyond the vocabulary": ({"input_ids": [5, VOCABULARY]}, {}, f"'input_ids' {OF_VOCABULARY}"),
    "a prompt beyond the context": (
        {"input_ids": [5] * CONTEXT},
        {"max_tokens": 1},
        f"{CONTEXT} tokens .*max_tokens.* {OF_CONTEXT}",
    ),
    "tokens beyond the context": (
        IDS,
        {"max_tokens": CONTEXT},
        f"max_tokens.* {CONTEXT + 5} tokens: {OF_CONTEXT}",
    ),
    "tokens as text": (IDS, {"max_tokens": "5"}, r"'max_tokens' must be an integer, not '5'"),
    "a bias beyond the vocabulary": (
        IDS,
        {"logit_bias": json.dumps({VOCABULARY: 1})},
        f"'logit_bias' {OF_VOCABULARY}",
    ),
    "an unknown parameter": (IDS, {"max_token": 5}, r"unknown parameter 'max_token': known are"),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_gets_an_error_that_names_it(decode: Server, way: str, case: str) -> None:
    inputs, parameters, says = BAD[case]
    if way == "http" and not inputs:
        pytest.skip("Triton itself refuses a body without inputs")
    with pytest.raises(Refused) as refused:
        WAYS[way](decode, inputs, **parameters)
    assert re.search(says, refused.value.message), refused.value.message
    assert refused.value.code == INVALID
    assert "Traceback" not in refused.value.message
    assert "/" not in refused.value.message


def test_text_that_is_not_utf8_is_refused(decode: Server) -> None:
    with pytest.raises(Refused, match="'text_input' is not valid UTF-8"):
        over_grpc(decode, {"text_input": np.array([b"a\xff"], np.object_)})


def test_parameters_that_are_not_utf8_are_refused(decode: Server) -> None:
    """gRPC checks them itself, Triton's HTTP does not."""
    body = b'{"input_ids": [5], "stop": "[\xff]"}'
    request = urllib.request.Request(f"{decode.http_url}/v2/models/decode/generate_stream", data=body)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request)
    assert refused.value.code == 400
    assert b"parameters are not valid UTF-8" in refused.value.read()


@pytest.mark.parametrize("way", [grpc_stream, http_stream])
def test_cancelling_frees_what_a_sequence_held(decode: Server, way: Any) -> None:
    counters.settled(decode)
    before = counters.tokens(decode)
    with way(decode, {"input_ids": PROMPT}, **LONG) as responses:
        next(responses)
    # Metrics are updated about once a second.
    wait_until(lambda: counters.tokens(decode) > before and present(decode) == 0)
    # It has not come to its end.
    assert counters.tokens(decode) - before < LONG["max_tokens"]


def test_cancelling_a_waiting_call_removes_it_from_the_queue(decode: Server) -> None:
    with ExitStack() as running:
        streams = [
            running.enter_context(grpc_stream(decode, {"input_ids": PROMPT}, **LONG)) for _ in range(STREAMS)
        ]
        assert all(next(stream).ids for stream in streams)
        with grpc_stream(decode, {"input_ids": PROMPT}, **LONG):
            wait_until(lambda: present(decode) == STREAMS + 1)
        wait_until(lambda: present(decode) == STREAMS)
        # The running ones go on.
        assert all(next(stream).ids for stream in streams)


def test_a_deadline_ends_a_generation_with_an_error(decode: Server) -> None:
    for timeout_us in (50_000 * 2**power for power in range(12)):
        with (
            grpc_stream(decode, {"input_ids": PROMPT}, timeout_us=timeout_us, **LONG) as responses,
            pytest.raises(Refused) as refused,
        ):
            for _ in responses:
                pass
        assert refused.value.code == "UNAVAILABLE"
        # A machine that does something else just then does not even come to its first token.
        if "in the queue" not in refused.value.message:
            break
    assert re.search(r"Request timeout expired after \d+ of at most 30000 tokens", refused.value.message)


def test_a_full_queue_is_unavailable(decode: Server) -> None:
    """A sequence that has run for long may be preempted; it then does not count as waiting."""

    calls: list[Future[Generation | Refused]] = []

    def call() -> Generation | Refused:
        try:
            return over_grpc(decode, {"input_ids": PROMPT}, max_tokens=30, ignore_eos=True)
        except Refused as error:
            return error

    with ExitStack() as held, ThreadPoolExecutor(MANY) as pool:
        for _ in range(STREAMS + QUEUE):
            held.enter_context(grpc_stream(decode, {"input_ids": PROMPT}, **LONG))
        wait_until(lambda: present(decode) == STREAMS + QUEUE)

        def is_refused() -> bool:
            calls.append(pool.submit(call))
            return any(isinstance(each.result(), Refused) for each in calls if each.done())

        wait_until(is_refused)
        held.close()
        outcomes = [call.result() for call in calls]
    refused = [outcome for outcome in outcomes if isinstance(outcome, Refused)]
    served = [outcome for outcome in outcomes if isinstance(outcome, Generation)]
    assert {error.code for error in refused} == {"UNAVAILABLE"}
    assert all("the queue is full" in error.message for error in refused)
    assert all(len(generation.ids) == 30 for generation in served)
    wait_until(lambda: counters.read(decode)["decode", "hiscore_rejects_total"] >= len(refused))


def test_stopping_lets_streams_finish_and_does_not_wait_for_more(tiny_llama: Path, tmp_path: Path) -> None:
    settings = settings_of(tiny_llama, models="decode", host_kv_bytes=2**28, drain_timeout_s=TIMEOUT_S)
    server = Server(settings, tmp_path / "log")
    with ExitStack() as stack:
        stack.enter_context(server)
        name = server.name
        client = stack.enter_context(ScoreClient(server.grpc_url))
        # Many that end at about the same time: if one were cancelled just then, all of the drain would pass.
        short = [client.generate(PROMPT, max_tokens=20, ignore_eos=True) for _ in range(8)]
        with ThreadPoolExecutor(8) as pool:
            assert all(pool.map(list, short))
        stream = client.generate(PROMPT, max_tokens=1_000, ignore_eos=True)
        received = len(next(stream).token_ids)
        started = time.monotonic()
        stop = threading.Thread(target=server.stop)
        stop.start()
        received += sum(len(chunk.token_ids) for chunk in stream)
        assert received == 1_000
        stop.join()
        assert time.monotonic() - started < TIMEOUT_S
    assert leftovers(name) == []
