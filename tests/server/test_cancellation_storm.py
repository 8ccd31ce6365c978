"""Hundreds of calls and streams, cancelled at random: every pool and counter returns to its start."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path

import grpc
import pytest
from tritonclient.grpc import service_pb2_grpc

from hiscore.launcher import Server
from perf.loadgen.exports import wait_for_exports
from tests.server import counters
from tests.server.beside import good_calls_beside
from tests.server.footprint import UNDER_WAY, footprint
from tests.server.generation import over_grpc
from tests.server.test_abuse_grpc import GOOD, numbers, request_of
from tests.server.test_decode_stream import gauges
from tests.support.timeouts import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

CALLS, STREAMS, AT_ONCE = 100, 100, 20
PROMPT = [("input_ids", "INT32", [2], numbers(11, 12))]
LONG = {"max_tokens": {"int64_param": 2_000}, "ignore_eos": {"bool_param": True}}
# 300 items of one token behind a query of one: some milliseconds of work.
ITEMS = [
    ("input_ids", "INT32", [1, 602], numbers(11, *[0, 12] * 300, 0)),
    ("delimiter_indices", "INT32", [1, 301], numbers(*range(1, 602, 2))),
    ("label_token_ids", "INT32", [1, 1], numbers(5)),
]


def cancelled_call(stub: service_pb2_grpc.GRPCInferenceServiceStub, number: int) -> str:
    """A call that is cancelled at once, a little later, perhaps not in time, or never."""
    chance = random.Random(number)
    model = chance.choice(["scorer", "score"])
    call = stub.ModelInfer.future(request_of(model, ITEMS if model == "scorer" else GOOD["score"], {}))
    timer = threading.Timer(chance.choice([0, 0.002, 0.02, 2 * TIMEOUT_S]), call.cancel)
    timer.start()
    try:
        call.result(timeout=TIMEOUT_S)
        return "OK"
    except grpc.FutureCancelledError:
        return "CANCELLED"
    except grpc.RpcError as error:
        return str(error.code().name)
    finally:
        timer.cancel()


def cancelled_stream(stub: service_pb2_grpc.GRPCInferenceServiceStub, number: int) -> str:
    """A stream that is cancelled after some responses, perhaps none; far from its end."""
    responses = stub.ModelStreamInfer(iter([request_of("decode", PROMPT, LONG)]), timeout=TIMEOUT_S)
    wanted = random.Random(number).choice([0, 0, 1, 3, 10])
    for _ in range(wanted):
        response = next(responses)
        if response.error_message:
            responses.cancel()
            return "UNAVAILABLE"
    responses.cancel()
    return "CANCELLED"


def storm(server: Server, seed: int) -> list[str]:
    with grpc.insecure_channel(server.grpc_url) as channel, ThreadPoolExecutor(AT_ONCE) as pool:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        work = [cancelled_call] * CALLS + [cancelled_stream] * STREAMS
        random.Random(seed).shuffle(work)
        done = [pool.submit(each, stub, 1_000 * seed + number) for number, each in enumerate(work)]
        wait(done)
        return [each.result() for each in done]


def rest(server: Server) -> None:
    """Wait until nothing of decode runs, waits or holds room."""
    over_grpc(server, {"input_ids": [11]}, max_tokens=2, ignore_eos=True)
    wait_for_exports(server.metrics_url)
    wait_until(lambda: not any(gauges(server).values()), lambda: gauges(server))


def test_after_storms_of_cancellations_all_is_as_before(abused: Server, tiny_lm: Path) -> None:
    server = abused
    with good_calls_beside(server, tiny_lm):
        outcomes = storm(server, seed=0)
        rest(server)
        before = footprint(server.pid, server.name)
        for seed in (1, 2):
            outcomes += storm(server, seed)
        rest(server)
    assert len(outcomes) == 3 * (CALLS + STREAMS)
    # No other error than these, and neither all nor none in time.
    assert set(outcomes) == {"OK", "CANCELLED"}
    after = footprint(server.pid, server.name)
    assert after.shared == before.shared
    # gRPC keeps some of either for a while: far fewer than one for each that was cancelled.
    assert after.threads <= before.threads + UNDER_WAY
    assert after.files <= before.files + UNDER_WAY
    # 400 more of either kind: 50 KiB for each would be seen. oneDNN compiles code for new numbers of rows.
    assert after.memory - before.memory < 20
    # What it counts goes on rising, about once a second: nothing waits behind what was cancelled.
    counters.settled(server)
    counted = counters.tokens(server)
    over_grpc(server, {"input_ids": [11, 12]}, max_tokens=30, ignore_eos=True)
    wait_until(lambda: counters.tokens(server) >= counted + 30)
