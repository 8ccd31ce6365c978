"""The queue as the launcher configures it: bounded, and a caller's own time-out counts."""

import re
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hiscore.launcher import Server
from tests.server.busy import inputs, score
from tests.server.conftest import StartServer
from tests.server.counters import counted

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


@pytest.mark.parametrize(("cancel", "computed"), [(True, 1_600), (False, 1_610)], ids=["gone", "control"])
def test_a_call_whose_caller_has_gone_is_not_computed(narrow: Server, cancel: bool, computed: int) -> None:
    """It waits behind two others when its caller cancels it; the control is a caller that stays."""
    answered: Queue[Exception | None] = Queue()
    with (
        counted(narrow) as risen,
        triton.InferenceServerClient(narrow.grpc_url) as client,
        ThreadPoolExecutor(2) as pool,
    ):
        before = [pool.submit(score, client, 800) for _ in range(2)]
        time.sleep(0.3)
        call = client.async_infer("scorer", inputs(10), lambda result, error: answered.put(error))
        time.sleep(0.2)
        assert not any(call.done() for call in before), "too fast: nothing has to wait"
        if cancel:
            call.cancel()
        assert all(len(each.result()) == 800 for each in before)
        assert (answered.get(timeout=30) is not None) == cancel
    assert risen["scorer", "hiscore_items_total"] == computed


def test_a_call_that_waited_longer_than_it_may_is_refused(narrow: Server) -> None:
    found = outcomes(narrow, [50_000] * 6)
    assert "scored" in found
    assert any(re.search(r"UNAVAILABLE: .*Request timeout expired", message) for message in found)
