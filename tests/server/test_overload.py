"""More than the server can do: the accepted wait for few batches, and large calls hold up no small ones."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hiscore.launcher import Server
from tests.server.busy import inputs
from tests.server.conftest import StartServer
from tests.server.counters import read
from tests.server.held import Holdable
from tests.support.timeouts import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

ITEMS = 30  # with its query a call of busy.py has 1,890 tokens then
TOKENS = 390 + 50 * ITEMS
ACCEPTED = 8  # calls
MANY = 10_000  # items


def items_before_a_small_call(server: Server, holdable: Holdable, parts: bool) -> int:
    """How many of the items of a large call are computed before a small one that comes during its first batch."""
    with triton.InferenceServerClient(server.grpc_url) as client, ThreadPoolExecutor(2) as pool:
        with holdable.held():
            large = pool.submit(client.infer, "scorer", inputs(MANY, query=8, length=5))
            holdable.wait_for(waiting=int(parts))
            small = pool.submit(client.infer, "scorer", inputs(1, query=3, length=3))
            holdable.wait_for(waiting=1 + parts)
        small.result(TIMEOUT_S)
        scores = large.result(TIMEOUT_S).as_numpy("scores")
    assert scores is not None
    assert scores.shape == (1, MANY, 2)
    # Equal items have equal scores, whichever part they were in.
    assert np.ptp(scores, axis=1).max() < 2e-5
    batches = holdable.batches()
    (turn,) = (place for place, items in enumerate(batches) if 1 in items)
    return sum(map(sum, batches[:turn]))


def test_a_call_of_ten_thousand_items_does_not_hold_up_small_ones(
    start_server: StartServer, tiny_llama: Path, tmp_path: Path
) -> None:
    holdable = Holdable.make(tmp_path)
    held = {"models": "scorer", "model_repository": holdable.repository}
    server = start_server(tiny_llama, max_batch_tokens=1_000, query_cache_bytes=2**24, **held)
    # One batch of five tokens each, the one that is being computed.
    assert items_before_a_small_call(server, holdable, parts=True) <= 1_000 / 5
    # The control: batches so large that the call is one.
    wide = start_server(tiny_llama, max_batch_tokens=100_000, query_cache_bytes=2**24, **held)
    assert items_before_a_small_call(wide, holdable, parts=False) == MANY


def test_at_three_times_saturation_the_excess_is_refused_and_the_accepted_do_not_wait_long(
    start_server: StartServer, tiny_llama: Path, tmp_path: Path
) -> None:
    """In batches: the accepted wait for as many as all that may wait fills, and these hold nothing else."""
    holdable = Holdable.make(tmp_path)
    server = start_server(
        tiny_llama, models="scorer", model_repository=holdable.repository,
        max_batch_tokens=2 * TOKENS, max_call_tokens=ACCEPTED * TOKENS // 4, query_cache_bytes=0,
    )  # fmt: skip
    for _ in range(3):
        flood(server, holdable)
    rejected = "scorer", "hiscore_rejects_total"
    wait_until(lambda: read(server)[rejected] == 3 * 2 * ACCEPTED, lambda: read(server)[rejected])


def flood(server: Server, holdable: Holdable) -> None:
    """Three times as many calls as the server accepts, at once."""
    answers: Queue[InferenceServerException | None] = Queue()
    made = inputs(ITEMS)

    def ask() -> None:
        client.async_infer("scorer", made, lambda result, error: answers.put(error))

    with triton.InferenceServerClient(server.grpc_url) as client:
        with holdable.held():
            ask()
            holdable.wait_for(waiting=0)
            for _ in range(3 * ACCEPTED - 1):
                ask()
            # Refused at once, while nothing is computed.
            refused = [answers.get(timeout=TIMEOUT_S) for _ in range(2 * ACCEPTED)]
            holdable.wait_for(waiting=ACCEPTED - 1)
        assert [answers.get(timeout=TIMEOUT_S) for _ in range(ACCEPTED)] == [None] * ACCEPTED
    for error in refused:
        assert error is not None
        assert "UNAVAILABLE" in str(error.status())
        assert "the server is full" in str(error.message())
    batches = holdable.batches()
    assert sum(map(sum, batches)) == ACCEPTED * ITEMS
    assert len(batches) <= 1 + ACCEPTED / 2
