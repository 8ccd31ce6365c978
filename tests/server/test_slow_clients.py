"""Callers that send slowly, do not read, or vanish: others are served, and their resources are released."""

import json
import socket
import struct
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from hiscore.launcher import Server
from tests.server.counters import settled, tokens
from tests.server.footprint import UNDER_WAY, footprint
from tests.server.generation import over_grpc
from tests.server.raw_http import connect, post
from tests.server.test_abuse_grpc import GOOD, request_of
from tests.server.test_abuse_http import DECODE, GOOD_ONES
from tests.server.test_decode_stream import gauges
from tests.server.wire import score_texts
from tests.support.timeouts import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

TOKENS = 1_000
STREAM = post(DECODE, json.dumps({"input_ids": [11, 12], "max_tokens": TOKENS, "ignore_eos": True}).encode())
SLOW = 8
SPLIT = GOOD_ONES["JSON"].index(b"\r\n") + 2
GONE = 40
LABELS = [5, 77]


@pytest.fixture(autouse=True)
def _all_is_given_back(abused: Server) -> Iterator[None]:
    files = footprint(abused.pid, abused.name).files
    yield
    wait_until(lambda: not any(gauges(abused).values()), lambda: gauges(abused))
    # gRPC keeps some files of its own, but fewer than one for each vanished caller.
    wait_until(lambda: footprint(abused.pid, abused.name).files <= files + UNDER_WAY)
    others_are_served(abused)


def others_are_served(abused: Server) -> None:
    assert score_texts(abused, "Is it?", [" a"], LABELS).scores.shape == (1, 2)
    assert len(over_grpc(abused, {"input_ids": [11]}, max_tokens=5, ignore_eos=True).ids) == 5


def read_all(connection: socket.socket) -> bytes:
    received = b""
    while block := connection.recv(65_536):
        received += block
    return received


def test_requests_that_come_byte_by_byte_are_answered_and_hold_up_nobody(abused: Server) -> None:
    line, request = GOOD_ONES["JSON"][:SPLIT], GOOD_ONES["JSON"][SPLIT:]
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(abused.http_address)) for _ in range(SLOW)]
        for connection in slow:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # Triton's HTTP library takes a path that comes in pieces for another one, which gets an error.
            connection.sendall(line)
        for place in range(len(request)):
            for connection in slow:
                connection.sendall(request[place : place + 1])
            if place % 50 == 0:
                others_are_served(abused)
        answers = [read_all(connection) for connection in slow]
    assert all(answer.startswith(b"HTTP/1.1 200 OK") for answer in answers), answers


def test_half_a_request_is_forgotten_with_its_connection(abused: Server) -> None:
    with ExitStack() as stack:
        for number in range(GONE):
            connection = stack.enter_context(connect(abused.http_address))
            request = list(GOOD_ONES.values())[number % len(GOOD_ONES)]
            connection.sendall(request[: 1 + number * (len(request) - 2) // GONE])
        others_are_served(abused)


def test_a_stream_over_http_that_nobody_reads_goes_on_and_holds_up_nobody(abused: Server) -> None:
    with closing(connect(abused.http_address)) as connection:
        settled(abused)
        before = tokens(abused)
        connection.sendall(STREAM)
        wait_until(lambda: tokens(abused) > before)
        others_are_served(abused)
        # It ends without its reader, who finds all of it later.
        wait_until(lambda: not any(gauges(abused).values()))
        answer = read_all(connection)
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: ")]
    ids = [event["output_ids"] for event in events]
    assert sum(len(each) if isinstance(each, list) else 1 for each in ids) == TOKENS
    assert events[-1]["finish_reason"] == "length"


def test_a_stream_over_grpc_that_nobody_reads_goes_on_and_holds_up_nobody(abused: Server) -> None:
    parameters = {"max_tokens": {"int64_param": TOKENS}, "ignore_eos": {"bool_param": True}}
    with grpc.insecure_channel(abused.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        request = request_of("decode", GOOD["decode"], parameters)
        settled(abused)
        before = tokens(abused)
        responses = stub.ModelStreamInfer(iter([request]), timeout=TIMEOUT_S)
        wait_until(lambda: tokens(abused) > before)
        others_are_served(abused)
        wait_until(lambda: not any(gauges(abused).values()))
        received = 0
        for response in responses:
            assert not response.error_message
            raw = response.infer_response.raw_output_contents
            names = [output.name for output in response.infer_response.outputs]
            received += len(raw[names.index("output_ids")]) // 4 if names else 0
    assert received == TOKENS


@pytest.mark.parametrize("how", ["reset", "close"])
def test_readers_that_vanish_in_the_middle_free_what_their_streams_held(abused: Server, how: str) -> None:
    with ExitStack() as stack:
        connections = [stack.enter_context(connect(abused.http_address)) for _ in range(GONE)]
        for connection in connections:
            connection.sendall(STREAM)
        first = connections[0].recv(1)
        assert first
        wait_until(lambda: gauges(abused)["hiscore_decode_waiting"])
        began = time.monotonic()
        for connection in connections:
            if how == "reset":
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            connection.close()
        others_are_served(abused)
        wait_until(
            lambda: not any(gauges(abused).values()), lambda: (gauges(abused), time.monotonic() - began)
        )
