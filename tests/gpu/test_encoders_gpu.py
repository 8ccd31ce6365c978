"""Encoders on one CUDA GPU against transformers in float32, one pair at a time."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.prefill.encoder_cuda_runner import CudaEncoderRunner
from hiscore.scoring.pair_scorer import load_encoder_scorer
from tests.support import tiny_models
from tests.support.pair_truth import PairTruth
from tests.support.scoring import SOFTMAX, request, score
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_encoders import CONTEXT, ENCODERS, VOCABULARY, make
from tests.support.truth import Truth

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

BATCH = [
    (13, [1, 7, 7, 0, 20, 3]),
    (0, [2, 1]),
    (1, [0, 0, 5]),
    (90, [31, 64, 2]),
    (6, []),
    (9, [CONTEXT - 9]),
]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, PairTruth]]:

    @cache
    def get(name: str) -> tuple[Path, PairTruth]:
        directory = make(name, tmp_path_factory.mktemp(name), 2)
        return directory, PairTruth(directory)

    return get


def random_calls() -> list[Tokens]:
    rng = np.random.default_rng(0)
    return [random_tokens(rng, query, items, VOCABULARY) for query, items in BATCH]


@pytest.mark.parametrize("name", ENCODERS)
def test_float32_equals_transformers(name: str, encoder) -> None:
    """Kernels in full float32: the same bound as on the CPU."""
    checkpoint, truth = encoder(name)
    for budget in (1_024, 64):
        scorer = load_encoder_scorer(checkpoint, "cuda", "float32", budget)
        for call, found in zip(random_calls(), score(scorer, random_calls()), strict=True):
            if call.items:
                expected = truth.scores_of_ids(call.query, call.items)
                np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama-mean", "llama-last", "embedding-gemma", "qwen3-moe-both-ways"])
def test_decoders_that_attend_both_ways_equal_transformers(name: str, tmp_path: Path) -> None:
    checkpoint = tiny_models.make(name, tmp_path, 2)
    truth, scorer = Truth(checkpoint), load_encoder_scorer(checkpoint, "cuda", "float32", 64)
    for call, found in zip(random_calls(), score(scorer, random_calls()), strict=True):
        if call.items:
            np.testing.assert_allclose(found, truth.scores(call.query, call.items), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ENCODERS)
def test_bfloat16_equals_itself_one_pair_at_a_time_and_a_graph_equals_eager(name: str, encoder) -> None:
    checkpoint, truth = encoder(name)
    scorer = load_encoder_scorer(checkpoint, "cuda", "bfloat16", 1_024)
    calls = random_calls()
    together = score(scorer, calls, SOFTMAX)
    for call, found in zip(calls, together, strict=True):
        for item, row in zip(call.items, found, strict=True):
            alone = score(scorer, [Tokens(call.query, [item])], SOFTMAX)[0][0]
            np.testing.assert_allclose(row, alone, atol=5e-3, rtol=0)
        if call.items:
            # 8 bits of mantissa through a few layers of random weights, as on the CPU.
            expected = truth.scores_of_ids(call.query, call.items, apply_softmax=True)
            np.testing.assert_allclose(found, expected, atol=0.05, rtol=0)
    assert isinstance(scorer.runner, CudaEncoderRunner)
    scorer.runner._graphs.clear()
    for graph, eager in zip(together, score(scorer, calls, SOFTMAX), strict=True):
        np.testing.assert_array_equal(graph, eager)


@pytest.mark.parametrize("name", ["bert", "modernbert-mean", "deberta-v2"])
def test_padding_rows_reach_nothing(name: str, encoder) -> None:
    """Garbage of an earlier, larger batch is where the padding is; the scores are not affected."""
    scorer = load_encoder_scorer(encoder(name)[0], "cuda", "bfloat16", 1_024)
    call = random_tokens(np.random.default_rng(1), 13, [5, 9], VOCABULARY)
    first = score(scorer, [call])[0]
    scorer.runner._x.fill_(float("nan"))
    scorer.runner._attended.fill_(float("nan"))
    score(scorer, random_calls())
    np.testing.assert_array_equal(score(scorer, [call])[0], first)


def test_a_batch_is_launched_without_a_wait(encoder) -> None:
    scorer = load_encoder_scorer(encoder("modernbert-mean")[0], "cuda", "bfloat16", 1_024)
    requests = [request(scorer, call) for call in random_calls()]
    scorer.submit(requests).result()
    torch.cuda.set_sync_debug_mode("error")
    try:
        pending = [scorer.submit(requests) for _ in range(4)]
        with pytest.raises(RuntimeError, match="synchroniz"):  # the control: the mode does notice
            torch.ones(1, device="cuda").item()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    first, *others = [each.result()[0] for each in pending]
    for answers in others:
        for one, other in zip(first, answers, strict=True):
            np.testing.assert_array_equal(one.scores, other.scores)
