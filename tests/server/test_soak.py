"""All kinds of calls at once, for SOAK_MINUTES: memory, /dev/shm, open files and threads do not grow."""

import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from hiscore_client import InvalidRequest, ScoreClient
from tests.server.beside import LABELS, good_calls_beside
from tests.server.conftest import StartServer
from tests.server.footprint import Footprint, footprint, grown
from tests.server.raw_http import exchange
from tests.server.test_abuse_http import CASES
from tests.server.test_decode_stream import gauges
from tests.support.strategies import random_tokens
from tests.support.timeouts import TIMEOUT_S, wait_until
from tests.support.tiny_models import VOCABULARY

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

MINUTES = float(os.environ.get("SOAK_MINUTES", "0.5"))
SAMPLE_S = 0.5
WORDS = ["is", "it", "a", "fruit", "or", "stone", "that", "grows", "on", "tall", "trees", "near", "water"]


@pytest.fixture(scope="module")
def server(start_server: StartServer, tiny_lm: Path) -> Server:
    # What finished sequences leave fills the host pool little by little: all of it is less than counts as growth.
    return start_server(
        tiny_lm, query_cache_bytes=2**24, host_kv_bytes=2**24, max_streams=8, drain_timeout_s=5
    )


def text(client: ScoreClient, chance: random.Random) -> None:
    query = " ".join(chance.choices(WORDS, k=chance.randint(1, 60)))
    items = [" " + chance.choice(WORDS) for _ in range(chance.randint(0, 30))]
    scores = client.score(query, items, label_token_ids=LABELS, timeout=TIMEOUT_S).scores
    assert scores.shape == (len(items), len(LABELS))


def ids(client: ScoreClient, chance: random.Random) -> None:
    rng = np.random.default_rng(chance.getrandbits(32))
    call = random_tokens(rng, chance.randint(1, 400), [chance.randint(0, 20) for _ in range(20)], VOCABULARY)
    assert np.isfinite(client.score_ids(call.query, call.items, LABELS, timeout=TIMEOUT_S).scores).all()


def stream(client: ScoreClient, chance: random.Random) -> None:
    """To its end, or left in the middle."""
    tokens, left = chance.randint(1, 120), chance.random() < 0.4
    chunks = client.generate(
        " ".join(chance.choices(WORDS, k=5)), max_tokens=tokens, ignore_eos=True, timeout=TIMEOUT_S
    )
    for chunk in chunks:
        if left and tokens > 60:
            break
        assert chunk.finish_reason in ("", "length")


def refused(client: ScoreClient, chance: random.Random) -> None:
    with suppress(InvalidRequest):
        client.score("a", ["b"], label_token_ids=[chance.randint(VOCABULARY, 2**31 - 1)], timeout=TIMEOUT_S)
        raise AssertionError("a label beyond the vocabulary was accepted")


def hostile(address: str, chance: random.Random) -> None:
    request, _ = CASES[chance.choice(sorted(CASES))]
    # Not those of many megabytes: what they take for a moment is not growth. Nor texts with a false length: Triton
    # 2.51 answers all calls of their batch with an error.
    if len(request) < 100_000 and b"gzip" not in request and b'"BYTES"' not in request:
        exchange(address, request, ends=True)


def drive(server: Server, end: float, counts: Counter[str]) -> Iterator[Callable[[], None]]:
    """What each caller does until the end."""

    def caller(work: Callable[[ScoreClient, random.Random], None], seed: int) -> Callable[[], None]:
        def run() -> None:
            chance = random.Random(seed)
            while time.monotonic() < end:
                with ScoreClient(server.grpc_url) as client:
                    for _ in range(50):
                        if time.monotonic() < end:
                            work(client, chance)
                            counts[work.__name__] += 1

        return run

    def enemy() -> None:
        chance = random.Random(0)
        while time.monotonic() < end:
            hostile(server.http_address, chance)
            counts["hostile"] += 1
            time.sleep(0.05)

    for seed, work in enumerate((text, text, ids, stream, stream, refused)):
        yield caller(work, seed)
    yield enemy


@pytest.mark.timeout(60 * MINUTES + 300)
def test_nothing_grows_while_all_kinds_of_calls_are_made(server: Server, tiny_lm: Path) -> None:
    counts: Counter[str] = Counter()
    samples: list[Footprint] = []
    end = time.monotonic() + 60 * MINUTES
    with good_calls_beside(server, tiny_lm), ThreadPoolExecutor(8) as pool:
        calls: list[Future[None]] = [pool.submit(run) for run in drive(server, end, counts)]
        while time.monotonic() < end:
            samples.append(footprint(server.pid, server.name))
            time.sleep(SAMPLE_S)
        for call in calls:
            call.result(timeout=TIMEOUT_S)
    print(f"{dict(counts)}\n{samples[len(samples) // 3]}\n{samples[-1]}")
    assert min(counts.values()) > 0, counts
    assert len(counts) == 5
    assert grown(samples) == []
    wait_until(lambda: not any(gauges(server).values()), lambda: gauges(server))


@pytest.mark.parametrize("what", ["memory", "shared", "files", "threads"])
def test_control_growth_is_found(what: str) -> None:
    """A little with every sample, as of a leak."""
    flat = {"memory": 500.0, "shared": 256.0, "files": 200, "threads": 90}
    step = {"memory": 1.5, "shared": 0.5, "files": 1, "threads": 1}[what]
    leak = [Footprint(**{**flat, what: flat[what] + step * place}) for place in range(60)]
    assert [line.split()[0] for line in grown(leak)] == [what]
    assert grown([Footprint(**flat)] * 60) == []
