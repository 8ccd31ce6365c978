"""Requests that end tritonserver 2.51, or a model's process, before any of our code sees them.

Triton computes with a shape before it looks at what has come: it makes room for that many elements, or their
number of bytes overflows. Lists nested some million deep end it too, for it parses them by recursion. Newer ones
may answer with an error; either way the next caller is served, and nobody waits for ever.
"""

import re
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from tests.server.busy import score
from tests.server.raw_http import exchange, leak
from tests.server.test_abuse_http import binary, ids
from tests.server.test_watchdog import Watched, watched

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

FATAL = {
    "a shape without end": ids([1, 2**62], data=[1]),
    "a shape whose bytes overflow to those that came": binary(20, shape=(1, 2**62 + 5)),
}


def http_address(server: Watched) -> str:
    found = re.search(r"HTTP http://(\S+?),", server.process.ready_line)
    assert found
    return found.group(1)


def test_the_server_is_back_for_the_next_caller(tiny_llama: Path, tmp_path: Path) -> None:
    with watched(tiny_llama, tmp_path / "log", MODELS="scorer") as server:
        address, restarts = http_address(server), 0
        for name, request in FATAL.items():
            answer = exchange(address, request)
            assert not leak(answer), name
            if not answer or "not healthy" in answer:
                restarts += 1
                server.wait(lambda restarts=restarts: server.restarts() == restarts)
            server.wait(lambda: server.get("/readyz")[0] == 200)
            with triton.InferenceServerClient(server.address) as client:
                assert score(client, 2).shape == (2, 2)
        assert server.restarts() == restarts
