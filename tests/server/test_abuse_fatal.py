"""Requests that end tritonserver 2.51, or a model's process, before any of our code sees them.

Triton computes with a shape before it looks at what has come: it makes room for that many elements, or their
number of bytes overflows. Lists nested some million deep end it too, for it parses them by recursion. Asked for
the classes of an output of texts, it divides by 0, the size of a text. Newer ones may answer with an error; either
way the next caller is served, and nobody waits for ever.
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import grpc
import pytest
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2, service_pb2_grpc

from tests.server.busy import score
from tests.server.raw_http import exchange, leak
from tests.server.test_abuse_http import binary, ids
from tests.server.test_watchdog import Watched, watched
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]


def http_address(server: Watched) -> str:
    found = re.search(r"HTTP http://(\S+?),", server.process.ready_line)
    assert found
    return found.group(1)


def over_http(request: bytes, server: Watched) -> str:
    return exchange(http_address(server), request)


def classes_of_texts(server: Watched) -> str:
    request = service_pb2.ModelInferRequest(model_name="decode", raw_input_contents=[bytes(4)])
    request.inputs.add(name="input_ids", datatype="INT32", shape=[1])
    request.outputs.add(name="text_output").parameters["classification"].int64_param = 1
    with grpc.insecure_channel(server.address) as channel:
        try:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            return next(stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S)).error_message
        except grpc.RpcError as error:
            return "" if error.code() is grpc.StatusCode.UNAVAILABLE else str(error.details())


FATAL: dict[str, Callable[[Watched], str]] = {
    "a shape without end": partial(over_http, ids([1, 2**62], data=[1])),
    "a shape whose bytes overflow to those that came": partial(over_http, binary(20, shape=(1, 2**62 + 5))),
    "classes of an output of texts": classes_of_texts,
}


def test_the_server_is_back_for_the_next_caller(tiny_llama: Path, tmp_path: Path) -> None:
    with watched(tiny_llama, tmp_path / "log", MODELS="scorer,decode", HOST_KV_BYTES="268435456") as server:
        restarts = 0
        for name, send in FATAL.items():
            answer = send(server)
            assert not leak(answer), name
            if not answer or "not healthy" in answer:
                restarts += 1
                server.wait(lambda restarts=restarts: server.restarts() == restarts)
            server.wait(lambda: server.get("/readyz")[0] == 200)
            with triton.InferenceServerClient(server.address) as client:
                assert score(client, 2).shape == (2, 2)
        assert server.restarts() == restarts
