"""The queue as the launcher configures it: bounded, and a caller's own time-out counts."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hiscore.launcher import Server
from tests.server.busy import score
from tests.server.conftest import StartServer

pytestmark = pytest.mark.server


@pytest.fixture
def narrow(start_server: StartServer, tiny_llama: Path) -> Server:
    """A server that has two calls in flight, each of them a batch, and lets two wait."""
    return start_server(tiny_llama, max_batch_calls=1, max_batch_tokens=4_000, max_queue=2)


def outcomes(server: Server, timeouts_us: list[int | None]) -> list[str]:
    """What becomes of concurrent calls: "scored", or the error's code and message."""

    def outcome(timeout_us: int | None) -> str:
        try:
            scores = score(client, 200, timeout_us)
        except InferenceServerException as error:
            return f"{error.status()}: {error.message()}"
        assert scores.shape == (200, 2)
        assert np.isfinite(scores).all()
        return "scored"

    with triton.InferenceServerClient(server.grpc_url) as client, ThreadPoolExecutor(16) as pool:
        return list(pool.map(outcome, timeouts_us))


def test_a_full_queue_refuses_and_the_others_are_served(narrow: Server) -> None:
    found = outcomes(narrow, [None] * 12)
    refused = [message for message in found if message != "scored"]
    assert found.count("scored") >= 3
    assert refused
    assert all(
        re.search(r"UNAVAILABLE: .*the server is full, try again later", message) for message in refused
    )
    # The control: as many as may wait are all served.
    assert outcomes(narrow, [None] * 2) == ["scored"] * 2


def test_a_call_that_waited_longer_than_it_may_is_refused(narrow: Server) -> None:
    found = outcomes(narrow, [50_000] * 6)
    assert "scored" in found
    assert any(re.search(r"UNAVAILABLE: .*Request timeout expired", message) for message in found)
