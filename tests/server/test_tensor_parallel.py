"""TENSOR_PARALLEL through a real tritonserver on the CPU: scores, faults of a rank, and what is left behind."""

import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import numpy as np
import psutil
import pytest
import tritonclient.grpc as triton

from hiscore.launcher import Server
from hiscore_client import ScoreClient
from tests.server.busy import score, until_error
from tests.server.conftest import StartServer, servers
from tests.server.test_watchdog import Watched, hanging_repository, watched
from tests.server.wire import Answer, score_tokens
from tests.support import tiny_dsa
from tests.support.comparison import INVARIANCE, check, truth_of
from tests.support.strategies import Tokens, random_tokens
from tests.support.timeouts import TIMEOUT_S
from tests.support.tiny_models import VOCABULARY

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 77, 401]
BUDGET = 64
TOKENS = 40
# Few pages on the device, so that most of what is selected is swapped in.
SMALL = {"sparse_top_k": 16, "device_buffer_size": 24, "backup_ring": 4, "max_streams": 4, "max_context": 512}
# Added to a model's own model.py: while the file exists, a call holds the interpreter.
STUCK = """
import ctypes
import os

_execute = TritonPythonModel.execute


def _stuck(self, requests):
    while os.path.exists({flag!r}):
        ctypes.PyDLL(None).sleep(3600)
    return _execute(self, requests)


TritonPythonModel.execute = _stuck
"""
PROMPTS = [np.random.default_rng(seed).integers(3, tiny_dsa.VOCABULARY, 60).tolist() for seed in range(4)]
SHAPES = [(13, [3, 7, 7, 0]), (0, [2, 90]), (200, [31, 64, 1]), (1, [5])]


@pytest.mark.parametrize("how", ["is stopped", "is stuck"])
def test_a_first_rank_that_hangs_takes_the_others_along(how: str, tiny_llama: Path, tmp_path: Path) -> None:
    """The watchdog or the other rank ends it, then the kernel the others. Tests of `hiscore.parallel.heartbeat`
    and of the watchdog say how soon, by a clock of their own.
    """
    flag = tmp_path / "stuck"
    settings = {"MODELS": "scorer", "TENSOR_PARALLEL": "2", "CANARY_SECONDS": "0"}
    settings["HISCORE_MODEL_REPOSITORY"] = str(hanging_repository(tmp_path / "repository", flag, STUCK))
    with watched(tiny_llama, tmp_path / "log", **settings) as server:
        stub = server.stub("scorer")
        (follower,) = followers(stub)
        with triton.InferenceServerClient(server.address) as client, ThreadPoolExecutor(1) as pool:
            if how == "is stopped":
                stub.send_signal(signal.SIGSTOP)
            else:
                flag.touch()
            call = pool.submit(until_error, lambda: score(client, 1), Event())
            server.wait(lambda: server.get("/readyz")[0] == 503)
            assert call.result(timeout=TIMEOUT_S)
        flag.unlink(missing_ok=True)
        server.wait(lambda: server.get("/readyz")[0] == 200)
        assert server.restarts() == 1
        assert not any(rank.is_running() for rank in (stub, follower))
        assert len(followers(server.stub("scorer"))) == 1
        if how == "is stuck":
            assert "rank 0 hangs: no sign of life" in server.log.read_text()


@pytest.fixture(scope="module")
def latents(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random DeepSeek with experts, without a tokenizer."""
    return tiny_dsa.make("deepseek-experts", tmp_path_factory.mktemp("latents"))


def followers(stub: psutil.Process) -> list[psutil.Process]:
    return [child for child in stub.children() if "hiscore.parallel.follower" in " ".join(child.cmdline())]


def answers(server: Server, calls: list[Tokens], softmax: bool) -> list[Answer]:
    with ThreadPoolExecutor(len(calls)) as pool:
        ask = partial(score_tokens, server, labels=LABELS, apply_softmax=softmax)
        return list(pool.map(ask, calls))


@pytest.mark.parametrize("ranks", [2, 4])
def test_scores_are_those_of_transformers_and_of_one_rank(
    ranks: int, tiny_llama: Path, start_server: StartServer, tmp_path: Path
) -> None:
    """Calls alone and at once, of several forwards each, twice: then with queries from the cache."""
    settings = {"models": "scorer", "max_batch_tokens": BUDGET, "query_cache_bytes": 2**20}
    alone = start_server(tiny_llama, **settings)
    calls = [random_tokens(np.random.default_rng(1), *shape, VOCABULARY) for shape in SHAPES]
    with servers(tmp_path) as start:
        together = start(tiny_llama, tensor_parallel=ranks, **settings)
        for softmax in (True, False):
            both = [answers(server, calls, softmax) for server in (alone, together, together)]
            for call, one, *others in zip(calls, *both, strict=True):
                truth = truth_of(tiny_llama).scores(call.query, call.items, LABELS, apply_softmax=softmax)
                for found in others:
                    check(found.scores, truth, not softmax)
                    np.testing.assert_allclose(found.scores, one.scores, atol=INVARIANCE, rtol=0)


HOW = pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["dies", "hangs"])


@HOW
def test_a_lost_rank_ends_the_instance_and_all_of_it_is_restored(
    how: signal.Signals, tiny_llama: Path, tmp_path: Path
) -> None:
    with watched(tiny_llama, tmp_path / "log", MODELS="scorer", TENSOR_PARALLEL="4") as server:
        check_four_ranks(server)
        with triton.InferenceServerClient(server.address) as client:
            check_a_lost_rank(server, "scorer", 2, how, [lambda: score(client, 100)] * 4)
        check_four_ranks(server)
    # `watched` has stopped the server, and looked for processes and shared memory that are left.


@HOW
def test_a_lost_rank_of_decode_ends_every_stream_and_all_of_it_is_restored(
    how: signal.Signals, latents: Path, tmp_path: Path
) -> None:
    """The others wait for what it stores of the host pool, too."""
    settings = {
        "MODELS": "decode",
        "TENSOR_PARALLEL": "2",
        **{key.upper(): str(of) for key, of in SMALL.items()},
    }
    with watched(latents, tmp_path / "log", **settings) as server:
        assert len(stream(server.address, PROMPTS[1])) == TOKENS
        calls = [partial(stream, server.address, prompt, 400) for prompt in PROMPTS[:3]]
        check_a_lost_rank(server, "decode", 1, how, calls)
        assert len(followers(server.stub("decode"))) == 1
        assert len(stream(server.address, PROMPTS[1])) == TOKENS


def check_a_lost_rank(
    server: Watched, model: str, rank: int, how: signal.Signals, calls: Sequence[Callable[[], object]]
) -> None:
    """Every call gets its error, and other processes come back."""
    stub = server.stub(model)
    ranks = [stub, *followers(stub)]
    stop = Event()
    with ThreadPoolExecutor(len(calls)) as pool:
        running = [pool.submit(until_error, call, stop) for call in calls]
        time.sleep(0.5)
        assert not any(call.done() for call in running)
        ranks[rank].send_signal(how)
        server.wait(lambda: server.get("/readyz")[0] == 503)
        try:
            assert all(call.result(TIMEOUT_S) for call in running)
        finally:
            stop.set()
    server.wait(lambda: server.get("/readyz")[0] == 200)
    assert server.restarts() == 1
    assert not any(each.is_running() for each in ranks)


def check_four_ranks(server: Watched) -> None:
    """It answers, by four processes, which end with the server."""
    stub = server.stub("scorer")
    assert len(followers(stub)) == 3
    with triton.InferenceServerClient(server.address) as client:
        assert np.isfinite(score(client, 3)).all()


def test_both_models_are_divided_and_generate_the_tokens_of_one_rank(tiny_lm: Path, tmp_path: Path) -> None:
    """With one copy of the weights on each rank, and few enough pages on the device that some are swapped in."""
    settings = {
        "sparse_top_k": 32, "device_buffer_size": 48, "backup_ring": 8,
        "max_context": 512, "max_streams": 4, "query_cache_bytes": 2**20, "max_batch_tokens": 256,
    }  # fmt: skip
    prompts = ["A fruit is", "Once upon a time there was " * 12, "1, 2, 3,", "def f(x):\n    return "]
    both = []
    for ranks in (1, 2):
        with servers(tmp_path) as start:
            server = start(tiny_lm, tensor_parallel=ranks, **settings)
            both.append(streams(server, prompts))
            with ScoreClient(server.grpc_url) as client:
                scored = client.score("Is it a fruit? ", ["apple", "stone"], label_token_ids=[7, 9])
                assert scored.scores.shape == (2, 2)
    check_tokens(*both)


def check_tokens(one: list[list[int]], others: list[list[int]]) -> None:
    assert one == others
    assert all(len(tokens) == TOKENS for tokens in one)
    # They are not all alike, or the comparison would say nothing.
    assert len({tuple(tokens) for tokens in one}) == len(one)


def stream(address: str, prompt: str | list[int], tokens: int = TOKENS) -> list[int]:
    """The tokens of a greedy generation."""
    with ScoreClient(address) as client:
        chunks = client.generate(prompt, max_tokens=tokens, ignore_eos=True, timeout=TIMEOUT_S)
        return [token for chunk in chunks for token in chunk.token_ids]


def streams(server: Server, prompts: Sequence[str | list[int]], tokens: int = TOKENS) -> list[list[int]]:
    with ThreadPoolExecutor(len(prompts)) as pool:
        return list(pool.map(partial(stream, server.grpc_url, tokens=tokens), prompts))
