"""More than the server can do: what is accepted is done as fast as ever, and large calls hold up no small ones."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from hiscore.launcher import Server
from hiscore.scoring.layout import lay_out
from hiscore.scoring.request import MultiItemPrompt
from tests.server.busy import inputs, score
from tests.server.conftest import StartServer
from tests.server.counters import processor_seconds, settled

pytestmark = [pytest.mark.server, pytest.mark.slow]

ITEMS = 30  # with its query a call of busy.py has 1,890 tokens then
TOKENS = 390 + 50 * ITEMS
SECONDS = 5.0
MOST = 8 * TOKENS
ATTEMPTS = 4


def call(query: int, items: int, length: int) -> list[triton.InferInput]:
    """A call of one label in token space."""
    ids, indices = lay_out(
        MultiItemPrompt.of([token % 400 for token in range(query)], [range(length)] * items)
    )
    made = []
    for name, values in {
        "input_ids": ids,
        "delimiter_indices": indices,
        "label_token_ids": np.array([7], np.int32),
    }.items():
        made.append(triton.InferInput(name, [1, len(values)], "INT32"))
        made[-1].set_data_from_numpy(values[None])
    return made


def slowest_small_call(server: Server, query: int) -> tuple[float, float]:
    """Seconds that the slowest small call takes during one of 10,000 items, and those of the large one."""
    with triton.InferenceServerClient(server.grpc_url) as client, ThreadPoolExecutor(1) as pool:
        small = call(3, 1, 3)
        client.infer("scorer", small)
        began = time.monotonic()
        large = pool.submit(client.infer, "scorer", call(query, 10_000, 5))
        time.sleep(0.2)
        seconds = []
        while not large.done():
            before = time.monotonic()
            client.infer("scorer", small)
            seconds.append(time.monotonic() - before)
        scores = large.result().as_numpy("scores")
        assert scores is not None
        assert scores.shape == (1, 10_000, 1)
        # Equal items have equal scores, whichever part they were in.
        assert np.ptp(scores) < 2e-5
        return max(seconds), time.monotonic() - began


def test_a_call_of_ten_thousand_items_does_not_hold_up_small_ones(
    start_server: StartServer, tiny_llama: Path
) -> None:
    server = start_server(tiny_llama, models="scorer", max_batch_tokens=1_000, query_cache_bytes=2**24)
    slowest, whole = min(slowest_small_call(server, query=8) for _ in range(2))
    assert slowest < whole / 5
    # The control: batches so large that the call is one, on a server that expects no small calls.
    wide = start_server(tiny_llama, models="scorer", max_batch_tokens=100_000, query_cache_bytes=2**24)
    held_up, whole = slowest_small_call(wide, query=8)
    assert held_up > whole / 2


def goodput_in_turn(client: triton.InferenceServerClient, callers: int) -> tuple[int, float]:
    """Calls and calls per second of concurrent callers, each of which waits for its answer."""
    end = time.monotonic() + SECONDS

    def ask() -> int:
        done = 0
        while time.monotonic() < end:
            score(client, ITEMS)
            done += 1
        return done

    with ThreadPoolExecutor(callers) as pool:
        began = time.monotonic()
        done = sum(pool.map(lambda _: ask(), range(callers)))
        return done, done / (time.monotonic() - began)


def goodput_in_a_flood(
    client: triton.InferenceServerClient, rate: float
) -> tuple[float, list[float], list[str]]:
    """Calls come at a rate, answered or not: answers per second, seconds of the accepted, errors of the others."""
    answers: Queue[tuple[float, InferenceServerException | None]] = Queue()
    sent, first = 0, time.monotonic()
    made, pause = inputs(ITEMS), threading.Event()
    while (now := time.monotonic()) < first + SECONDS:
        if now < first + sent / rate:
            pause.wait(first + sent / rate - now)
            continue
        began = now
        client.async_infer(
            "scorer", made, lambda result, error, began=began: answers.put((time.monotonic() - began, error))
        )
        sent += 1
    found = [answers.get(timeout=60) for _ in range(sent)]
    seconds = [took for took, error in found if error is None]
    errors = [f"{error.status()} {error.message()}" for _, error in found if error is not None]
    return len(seconds) / (time.monotonic() - first), seconds, errors


def test_at_three_times_saturation_goodput_stays_and_the_accepted_do_not_wait_long(
    start_server: StartServer, tiny_llama: Path
) -> None:
    server = start_server(
        tiny_llama, models="scorer", max_batch_tokens=2 * TOKENS, max_queue_tokens=MOST, query_cache_bytes=0
    )
    seen, refused = [], 0
    with triton.InferenceServerClient(server.grpc_url) as client:
        score(client, ITEMS)  # the first is slower
        for _ in range(ATTEMPTS):
            begin = processor_seconds(server)
            done, peak = goodput_in_turn(client, callers=4)
            middle = processor_seconds(server)
            rate, seconds, errors = goodput_in_a_flood(client, 3 * peak)
            end = processor_seconds(server)
            refused += len(errors)
            assert all("UNAVAILABLE" in error and "the server is full" in error for error in errors)
            # Work done for the processor's time that it took, in the flood and just before it.
            goodput = len(seconds) / (end - middle) / (done / (middle - begin))
            # By the time that what may wait at most takes at the pace of the flood.
            wait = float(np.quantile(seconds, 0.99)) / (MOST / TOKENS / rate)
            seen.append((goodput, rate / peak, wait))
            # A factor of two for what else the machine does.
            if errors and goodput >= 0.9 and rate >= 0.5 * peak and wait < 2:
                print(f"goodput {goodput:.2f}, {rate / peak:.2f} by the clock, p99 {wait:.2f} of its bound")
                wait_until_counted(server, client, refused)
                return
    raise AssertionError(f"goodput relative to the peak, the same by the clock, p99 by its bound: {seen}")


def wait_until_counted(server: Server, client: triton.InferenceServerClient, refused: int) -> None:
    """Rejected calls are counted with a batch, once a second."""
    end = time.monotonic() + 60
    while settled(server)["scorer", "hiscore_rejects_total"] != refused:
        assert time.monotonic() < end, "not every rejected call was counted"
        score(client, ITEMS)
