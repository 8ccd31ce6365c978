"""The queue as the launcher configures it: bounded, and a caller's own time-out counts."""

import re
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hiscore.batching.waiting import POLL_AFTER_S
from hiscore.launcher import Server
from tests.server.busy import inputs, score
from tests.server.conftest import StartServer
from tests.server.counters import counted
from tests.server.held import Holdable
from tests.support.timeouts import TIMEOUT_S

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

QUEUE = 5
ITEMS = 10


@pytest.fixture
def narrow(start_server: StartServer, tiny_llama: Path, holdable: Holdable) -> Server:
    """A server that lets few calls wait, and hands over one at a time."""
    return start_server(
        tiny_llama,
        models="scorer",
        model_repository=holdable.repository,
        max_batch_calls=1,
        max_queue=QUEUE,
    )


@contextmanager
def one_held(client: triton.InferenceServerClient, holdable: Holdable) -> Iterator[None]:
    """Inside, a call is being computed; it is answered after."""
    with ThreadPoolExecutor(1) as pool:
        with holdable.held():
            call = pool.submit(score, client, ITEMS)
            holdable.wait_for(waiting=0)
            yield
        assert call.result(TIMEOUT_S).shape == (ITEMS, 2)


def outcome(client: triton.InferenceServerClient, timeout_us: int | None = None) -> str:
    """What becomes of a call: "scored", or the error's code and message."""
    try:
        scores = score(client, ITEMS, timeout_us)
    except InferenceServerException as error:
        return f"{error.status()}: {error.message()}"
    assert scores.shape == (ITEMS, 2)
    assert np.isfinite(scores).all()
    return "scored"


def test_a_full_queue_refuses_and_the_others_are_served(narrow: Server, holdable: Holdable) -> None:
    more = 3 * QUEUE
    with triton.InferenceServerClient(narrow.grpc_url) as client, ThreadPoolExecutor(QUEUE + more) as pool:
        with one_held(client, holdable):
            calls = [pool.submit(outcome, client) for _ in range(QUEUE + more)]
            answered = as_completed(calls, timeout=TIMEOUT_S)
            refused = [next(answered).result() for _ in range(more)]
            holdable.wait_for(waiting=QUEUE)
        assert [call.result() for call in answered] == ["scored"] * QUEUE
    pattern = "UNAVAILABLE: .*the server is full, try again later"
    assert all(re.search(pattern, message) for message in refused), refused


@pytest.mark.parametrize(("cancel", "computed"), [(True, 0), (False, ITEMS)], ids=["gone", "control"])
def test_a_call_whose_caller_has_gone_is_not_computed(
    narrow: Server, holdable: Holdable, cancel: bool, computed: int
) -> None:
    """It waits behind another when its caller cancels it; the control is a caller that stays."""
    answered: Queue[Exception | None] = Queue()
    counted_are = {("scorer", "hiscore_items_total"): ITEMS + computed}
    with counted(narrow, counted_are) as risen, triton.InferenceServerClient(narrow.grpc_url) as client:
        with one_held(client, holdable):
            call = client.async_infer("scorer", inputs(ITEMS), lambda result, error: answered.put(error))
            holdable.wait_for(waiting=1)
            if cancel:
                call.cancel()
                holdable.wait_for(waiting=1, gone=1)
            time.sleep(2 * POLL_AFTER_S)
        assert (answered.get(timeout=TIMEOUT_S) is not None) == cancel
    assert risen["scorer", "hiscore_items_total"] == ITEMS + computed


@pytest.mark.parametrize(
    ("timeout_us", "expected"),
    [(1_000, r"UNAVAILABLE: .*Request timeout expired"), (10**6 * TIMEOUT_S, "^scored$")],
    ids=["late", "control"],
)
def test_a_call_that_waited_longer_than_it_may_is_refused(
    narrow: Server, holdable: Holdable, timeout_us: int, expected: str
) -> None:
    with triton.InferenceServerClient(narrow.grpc_url) as client, ThreadPoolExecutor(1) as pool:
        with one_held(client, holdable):
            call: Future[str] = pool.submit(outcome, client, timeout_us)
            holdable.wait_for(waiting=1)
            time.sleep(0.01)
        assert re.search(expected, call.result(TIMEOUT_S)), call.result()
