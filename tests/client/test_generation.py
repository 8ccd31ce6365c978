"""`generate` of both clients against a real gRPC endpoint that streams; each test runs once per twin."""

import asyncio
import json
import struct
import threading
import time
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from hiscore_client import (
    AsyncScoreClient,
    Cancelled,
    Chunk,
    DeadlineExceeded,
    HiscoreError,
    InvalidRequest,
    Overloaded,
    RetryPolicy,
    ScoreClient,
    ServerFault,
    ServerUnreachable,
    generation,
)
from tests.client.faulty_server import FaultyServer, abort, delay, refuse, serving, until_cancelled
from tests.support.timeouts import TIMEOUT_S, wait_until

QUICK = RetryPolicy(attempts=3, first_pause=0.01)
CHUNKS = [
    Chunk("The ", [11], ""),
    Chunk("größte ", [12, 13], ""),
    Chunk("", [], ""),
    Chunk("🍎", [14], "stop"),
]


class Twin:
    """Generates with a fresh client, the same way for both clients; gives the chunks and what ended them."""

    def __init__(self, asynchronous: bool, url: str) -> None:
        self.asynchronous = asynchronous
        self.url = url

    def __call__(self, *args: Any, **options: Any) -> list[Chunk]:
        chunks, error = self.until_error(*args, **options)
        if error:
            raise error
        return chunks

    def until_error(
        self, *args: Any, stop_after: int | None = None, headers: Any = None, **options: Any
    ) -> tuple[list[Chunk], HiscoreError | None]:
        chunks: list[Chunk] = []
        settings = {"url": self.url, "retry": QUICK, "headers": headers}
        if not self.asynchronous:
            with ScoreClient(**settings) as client:
                try:
                    for chunk in client.generate(*args, **options):
                        chunks.append(chunk)
                        if len(chunks) == stop_after:
                            break
                except HiscoreError as error:
                    return chunks, error
                return chunks, None

        async def run() -> HiscoreError | None:
            async with AsyncScoreClient(**settings) as client:
                try:
                    async for chunk in client.generate(*args, **options):
                        chunks.append(chunk)
                        if len(chunks) == stop_after:
                            break
                except HiscoreError as error:
                    return error
                return None

        return chunks, asyncio.run(run())


@pytest.fixture(params=["sync", "async"])
def twin(request: pytest.FixtureRequest, url: str) -> Twin:
    return Twin(request.param == "async", url)


def sent(server: FaultyServer) -> dict[str, Any]:
    (request,) = server.requests
    return {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in request.parameters.items()
    }


def test_text_goes_out_and_chunks_come_back(twin: Twin, server: FaultyServer) -> None:
    assert twin("größer?", request_id="mine", headers={"tenant": "a"}) == CHUNKS
    (request,) = server.requests
    assert (request.model_name, request.id) == ("decode", "mine")
    (tensor,), (content,) = request.inputs, request.raw_input_contents
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("text_input", "BYTES", [1])
    text = "größer?".encode()
    assert content == struct.pack("<I", len(text)) + text
    # What else is at its default is left to the server.
    assert sent(server) == {"max_tokens": 16}
    # It would make Triton 2.51 die with an error in some thousand.
    assert "triton_grpc_error" not in server.metadata[0]
    assert server.metadata[0]["tenant"] == "a"


def test_all_that_the_context_has_left_may_be_asked_for(twin: Twin, server: FaultyServer) -> None:
    assert twin("a", max_tokens=None) == CHUNKS
    assert sent(server) == {}


def test_ids_go_out_as_they_are(twin: Twin, server: FaultyServer) -> None:
    assert twin(np.array([7, 8, 9])) == CHUNKS
    (request,) = server.requests
    (tensor,), (content,) = request.inputs, request.raw_input_contents
    assert (tensor.name, tensor.datatype, list(tensor.shape)) == ("input_ids", "INT32", [3])
    assert np.frombuffer(content, "<i4").tolist() == [7, 8, 9]


def test_every_parameter_reaches_the_server(twin: Twin, server: FaultyServer) -> None:
    plain = {"max_tokens": 5, "top_p": 0.5, "seed": -3, "ignore_eos": True, "sparse": False, "logprobs": 2}
    free = {"min_p": 0.25, "stream": False}
    written = {"json_schema": {"type": "string"}, "logit_bias": {5: -100, 7: 0.5}}
    lists = {"stop": ["\n", "ä"], "stop_token_ids": np.array([5, 6])}
    others = {"temperature": 1, "top_k": np.int64(4), "regex": None, "timeout": 1_000}
    twin([1], **plain, **written, **lists, **others, parameters=free)
    found = sent(server)
    assert 500e6 < found.pop("timeout") <= 1_000e6
    assert json.loads(found.pop("stop")) == ["\n", "ä"]
    assert json.loads(found.pop("stop_token_ids")) == [5, 6]
    as_text = {"json_schema": '{"type": "string"}', "logit_bias": '{"5": -100, "7": 0.5}'}
    assert found == {**plain, **free, **as_text, "temperature": 1.0, "top_k": 4}
    # Triton tells 1 from 1.0: a float must go out as one.
    assert server.requests[0].parameters["temperature"].WhichOneof("parameter_choice") == "double_param"


@pytest.mark.parametrize(
    ("prompt", "options", "says"),
    [
        ("a\ud800", {}, "'prompt' is not valid Unicode"),
        ([[1]], {}, "'prompt' must be a flat list of token ids"),
        ([2**31], {}, "'prompt' holds an id beyond 2147483647"),
        ("a", {"max_tokens": "5"}, "'max_tokens' must be a whole number of 64 bits, not '5'"),
        ("a", {"logit_bias": {1: float("nan")}}, "'logit_bias' must hold what JSON can"),
        ("a", {"json_schema": {"enum": {1}}}, "'json_schema' must hold what JSON can"),
        ("a", {"seed": 2**63}, "'seed' must be a whole number of 64 bits"),
        ("a", {"top_k": 1.5}, "'top_k' must be a whole number"),
        ("a", {"temperature": float("nan")}, "'temperature' must be a finite number, not nan"),
        ("a", {"top_p": "0.5"}, "'top_p' must be a finite number"),
        ("a", {"stop": "END"}, "'stop' must be a list of strings, not one string"),
        ("a", {"stop": [5]}, "'stop' at place 0 must be a string, not int"),
        ("a", {"stop_token_ids": ["a"]}, "'stop_token_ids' must be a flat list of token ids"),
        ("a", {"timeout": 0}, "'timeout' must be finite and greater than 0 seconds"),
    ],
)
def test_what_cannot_go_onto_the_wire_is_refused_at_once(
    url: str, server: FaultyServer, prompt: Any, options: dict[str, Any], says: str
) -> None:
    with ScoreClient(url) as client, pytest.raises(InvalidRequest) as refused:
        client.generate(prompt, request_id="mine", **options)
    assert says in str(refused.value)
    assert refused.value.request_id == "mine"
    with pytest.raises(InvalidRequest, match=r"^'"):
        AsyncScoreClient(url).generate(prompt, **options)
    assert server.requests == []


@pytest.mark.parametrize("way", ["text", "status"])
@pytest.mark.parametrize(
    ("code", "message", "kind"),
    [
        ("INVALID_ARG", "parameter 'top_p' must be ...: 'a: b'", InvalidRequest),
        ("INTERNAL", "internal error", ServerFault),
        ("CANCELLED", "gone", Cancelled),
        ("UNAVAILABLE", "Request timeout expired in the queue", DeadlineExceeded),
    ],
)
def test_errors_are_the_same_before_and_after_the_first_chunk(
    twin: Twin, server: FaultyServer, way: str, code: str, message: str, kind: type[HiscoreError]
) -> None:
    """The server's own come as texts, those of gRPC and of proxies as a status."""
    fault = refuse(code, message) if way == "text" else abort(code.replace("_ARG", "_ARGUMENT"), message)
    server.faults.append(fault)
    chunks, error = twin.until_error("a", request_id="mine")
    assert (chunks, type(error)) == ([], kind)
    assert error is not None
    assert str(error) == message
    assert error.request_id == "mine"
    server.stream[2:] = [fault]
    chunks, error = twin.until_error("a")
    assert (chunks, type(error)) == (CHUNKS[:2], kind)
    assert len(server.requests) == 2
    # Read to its end: a cancellation just then would be one too many for Triton.
    wait_until(lambda: server.ended_streams == 2)
    if way == "text":
        assert server.cancelled == 0


def test_a_full_server_is_tried_again_but_not_once_a_stream_has_started(
    twin: Twin, server: FaultyServer
) -> None:
    full = refuse("UNAVAILABLE", "the queue is full: 5 calls wait")
    server.faults.extend([full, full])
    assert twin("a") == CHUNKS
    assert len(server.requests) == 3
    server.faults.extend([full] * 3)
    with pytest.raises(Overloaded, match="the queue is full"):
        twin("a")
    server.requests.clear()
    server.stream[1:] = [full]
    chunks, error = twin.until_error("a")
    assert (chunks, type(error)) == (CHUNKS[:1], Overloaded)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Request for unknown model: 'decode' is not found", ServerFault),
        ("Server is stopping, scheduler for model has stopped accepting new inference requests", Overloaded),
    ],
)
def test_an_error_of_tritons_own_has_no_code(
    twin: Twin, server: FaultyServer, monkeypatch: pytest.MonkeyPatch, text: str, kind: type[HiscoreError]
) -> None:
    def answer(requests: Any, context: Any) -> Any:
        yield service_pb2.ModelStreamInferResponse(error_message=text)

    monkeypatch.setattr(server, "ModelStreamInfer", answer)
    # The service has the method since it was made: serve anew.
    with serving(server) as url, pytest.raises(kind, match=text):
        Twin(twin.asynchronous, url)("a")


@pytest.mark.parametrize("stop_after", [1, 2])
def test_leaving_the_loop_cancels_the_generation(twin: Twin, server: FaultyServer, stop_after: int) -> None:
    server.stream[2:] = [until_cancelled]
    chunks, error = twin.until_error("a", stop_after=stop_after)
    assert (chunks, error) == (CHUNKS[:stop_after], None)
    wait_until(lambda: server.ended_streams == 1)
    assert server.cancelled == 1


def test_closing_the_iterator_cancels_the_generation(url: str, server: FaultyServer) -> None:
    server.stream[1:] = [until_cancelled]
    with ScoreClient(url) as client:
        stream = client.generate("a")
        assert next(stream) == CHUNKS[0]
        stream.close()
        wait_until(lambda: server.cancelled == 1)
        with pytest.raises(StopIteration):
            next(stream)
        server.stream[1:] = [([14], b"x", b"length")]
        assert [chunk.finish_reason for chunk in client.generate("b")] == ["", "length"]

    async def close() -> None:
        async with AsyncScoreClient(url) as client:
            stream = client.generate("a")
            assert await anext(stream) == CHUNKS[0]
            await stream.aclose()
            while server.cancelled < 2:
                await asyncio.sleep(0.005)

    server.stream[1:] = [until_cancelled]
    asyncio.run(asyncio.wait_for(close(), TIMEOUT_S))


def test_closing_the_client_ends_its_streams(url: str, server: FaultyServer) -> None:
    server.stream[1:] = [until_cancelled]
    client = ScoreClient(url)
    stream = client.generate("a", request_id="mine")
    next(stream)
    threading.Timer(0.05, client.close).start()
    with pytest.raises(Cancelled, match="the client is closed") as ended:
        next(stream)
    assert ended.value.request_id == "mine"
    with pytest.raises(Cancelled, match="the client is closed"):
        next(client.generate("a"))

    async def close() -> None:
        client = AsyncScoreClient(url)
        stream = client.generate("a")
        await anext(stream)
        asyncio.get_running_loop().call_later(0.05, lambda: tasks.append(asyncio.create_task(client.close())))
        with pytest.raises(Cancelled, match="the client is closed"):
            await anext(stream)
        with pytest.raises(Cancelled, match="the client is closed"):
            await anext(client.generate("a"))

    tasks: list[Any] = []
    asyncio.run(asyncio.wait_for(close(), TIMEOUT_S))


def test_cancelling_a_task_cancels_its_generation(url: str, server: FaultyServer) -> None:
    server.stream[1:] = [until_cancelled]

    async def run() -> None:
        async with AsyncScoreClient(url) as client:
            read = asyncio.Event()

            async def consume() -> None:
                async for _ in client.generate("a"):
                    read.set()

            task = asyncio.create_task(consume())
            await read.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            while not server.cancelled:
                await asyncio.sleep(0.005)

    asyncio.run(asyncio.wait_for(run(), TIMEOUT_S))


@pytest.mark.slow
def test_the_server_ends_a_stream_in_time_and_the_connection_only_later(
    twin: Twin, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both at once are too much for Triton: its stream would be cancelled while it ends."""
    monkeypatch.setattr(generation, "GRACE_S", TIMEOUT_S)
    late = refuse("UNAVAILABLE", "Request timeout expired after 1 of at most 16 tokens")
    server.stream[1:] = [delay(1.5), late]
    chunks, error = twin.until_error("a", timeout=1.0)
    assert (chunks, type(error)) == (CHUNKS[:1], DeadlineExceeded)
    assert "the timeout of 1.0 s has passed" in str(error)
    wait_until(lambda: server.ended_streams == 1)
    assert server.cancelled == 0


@pytest.mark.slow
def test_a_reader_that_is_late_still_hears_from_the_server(
    url: str, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "GRACE_S", TIMEOUT_S)
    late = refuse("UNAVAILABLE", "Request timeout expired after 1 of at most 16 tokens")
    server.stream[1:] = [delay(1.5), late]
    with ScoreClient(url) as client:
        chunks = client.generate("a", timeout=1.0)
        assert next(chunks) == CHUNKS[0]
        time.sleep(1.2)
        with pytest.raises(DeadlineExceeded):
            next(chunks)
    wait_until(lambda: server.ended_streams == 1)
    assert server.cancelled == 0


def test_the_timeout_holds_for_the_whole_stream(
    twin: Twin, server: FaultyServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generation, "GRACE_S", 0.1)
    server.stream[1:] = [until_cancelled]
    chunks, error = twin.until_error("a", timeout=0.3)
    # On a busy machine the time may be up before the first chunk.
    assert chunks in ([], CHUNKS[:1])
    assert type(error) is DeadlineExceeded
    assert "the timeout of 0.3 s has passed" in str(error)


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        ([([1], b"a", b"")], "the stream ended without a 'finish_reason'"),
        ([([1], b"\xff", b"stop")], "'text_output' came back with broken characters"),
    ],
)
def test_an_answer_that_breaks_the_promise_is_the_servers_fault(
    twin: Twin, server: FaultyServer, stream: Any, says: str
) -> None:
    server.stream = stream
    with pytest.raises(ServerFault, match=says):
        twin("a")


def test_nobody_there_is_unreachable(dead_url: str) -> None:
    for asynchronous in (False, True):
        with pytest.raises(ServerUnreachable):
            Twin(asynchronous, dead_url)("a")


def test_many_streams_of_one_client_do_not_mix(url: str, server: FaultyServer) -> None:
    server.stream.insert(1, delay(0.05))
    results: list[list[Chunk]] = []
    with ScoreClient(url) as client:
        threads = [
            threading.Thread(target=lambda: results.append(list(client.generate("a")))) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert results == [CHUNKS] * 8


def test_a_model_that_is_not_hiscores_is_noticed(url: str, server: FaultyServer) -> None:
    server.ready.add("decode")
    with ScoreClient(url) as client:
        client.wait_ready(TIMEOUT_S, ["decode"])
        server.tensors["decode"] = server.tensors["decode"][1:]
        with pytest.raises(ServerFault, match="no INT32 tensor 'input_ids'"):
            client.wait_ready(5, ["decode"])


def test_a_stream_left_at_its_last_chunk_has_ended_and_is_not_cancelled(
    twin: Twin, server: FaultyServer
) -> None:
    # The end of the stream comes a little after the last chunk.
    server.stream.append(delay(0.1))
    chunks, error = twin.until_error("a", stop_after=len(CHUNKS))
    assert (chunks, error) == (CHUNKS, None)
    wait_until(lambda: server.ended_streams == 1)
    assert server.cancelled == 0


def test_an_option_that_does_not_exist_is_a_type_error(url: str) -> None:
    with ScoreClient(url) as client, pytest.raises(TypeError, match="unexpected keyword argument 'min_q'"):
        client.generate("a", min_q=0.5)  # type: ignore[call-arg]
