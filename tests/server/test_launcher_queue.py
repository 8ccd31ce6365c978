"""The queue as the launcher configures it: bounded, and a caller's own time-out counts."""

import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
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

QUEUE = 5
LARGE = 200  # items; with its query a call has more tokens than a batch may, and too few to be split


@pytest.fixture
def narrow(start_server: StartServer, tiny_llama: Path) -> Server:
    """A server that computes one large call at a time and lets few wait."""
    return start_server(tiny_llama, max_batch_calls=1, max_batch_tokens=4_000, max_queue=QUEUE)


def outcomes(server: Server, calls: int) -> list[str]:
    """What becomes of concurrent large calls: "scored", or the error's code and message."""

    def outcome(_: int) -> str:
        try:
            scores = score(client, LARGE)
        except InferenceServerException as error:
            return f"{error.status()}: {error.message()}"
        assert scores.shape == (LARGE, 2)
        assert np.isfinite(scores).all()
        return "scored"

    with triton.InferenceServerClient(server.grpc_url) as client, ThreadPoolExecutor(calls) as pool:
        return list(pool.map(outcome, range(calls)))


def test_a_full_queue_refuses_and_the_others_are_served(narrow: Server) -> None:
    found = outcomes(narrow, 4 * QUEUE)
    refused = [message for message in found if message != "scored"]
    assert found.count("scored") >= QUEUE
    assert refused
    assert all(
        re.search(r"UNAVAILABLE: .*the server is full, try again later", message) for message in refused
    )
    # The control: as many as may wait are all served.
    assert outcomes(narrow, QUEUE) == ["scored"] * QUEUE


@contextmanager
def at_work(client: triton.InferenceServerClient) -> Iterator[list[Future[np.ndarray]]]:
    """As many large calls as may wait: one has been answered inside, so all have come; all are scored after."""
    with ThreadPoolExecutor(QUEUE) as pool:
        calls = [pool.submit(score, client, LARGE) for _ in range(QUEUE)]
        next(as_completed(calls, timeout=60))
        yield calls
        assert all(len(call.result(timeout=60)) == LARGE for call in calls)


@pytest.mark.parametrize(("cancel", "computed"), [(True, 0), (False, LARGE)], ids=["gone", "control"])
def test_a_call_whose_caller_has_gone_is_not_computed(narrow: Server, cancel: bool, computed: int) -> None:
    """It waits behind others of its size when its caller cancels it; the control is a caller that stays."""
    answered: Queue[Exception | None] = Queue()
    with counted(narrow) as risen, triton.InferenceServerClient(narrow.grpc_url) as client:
        with at_work(client) as before:
            call = client.async_infer("scorer", inputs(LARGE), lambda result, error: answered.put(error))
            # It comes while one is computed, and is cancelled while others are.
            next(as_completed([each for each in before if not each.done()], timeout=60))
            assert sum(not each.done() for each in before) >= 2, "nothing has to wait"
            if cancel:
                call.cancel()
        assert (answered.get(timeout=60) is not None) == cancel
    assert risen["scorer", "hiscore_items_total"] == QUEUE * LARGE + computed


@pytest.mark.parametrize(
    ("timeout_us", "late"), [(1_000, True), (60_000_000, False)], ids=["late", "control"]
)
def test_a_call_that_waited_longer_than_it_may_is_refused(
    narrow: Server, timeout_us: int, late: bool
) -> None:
    """It waits behind large ones, each of which takes longer than it has."""
    with triton.InferenceServerClient(narrow.grpc_url) as client, at_work(client):
        try:
            outcome = f"scored {len(score(client, 10, timeout_us))}"
        except InferenceServerException as error:
            outcome = f"{error.status()}: {error.message()}"
    assert re.search(r"UNAVAILABLE: .*Request timeout expired" if late else "^scored 10$", outcome), outcome
