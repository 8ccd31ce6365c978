"""Projections in int8 on one CUDA GPU: sums are exact, so the kernel has the bits of PyTorch."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.layers.eight_bits import EightBits, Int8Linear, quantise
from hiscore.prefill.cuda_runner import CudaRunner
from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_models import VOCABULARY, make
from tests.support.truth import Truth

INT8 = EightBits.INT8
HAS_INT8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= INT8.capability
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_INT8, reason="no CUDA GPU that computes in int8 here"),
]

LABELS = np.array([5, 77, 401], np.int32)
OPTIONS = ScoreOptions(apply_softmax=True)
ITEMS = [0, *range(1, 30)]
ROTATED = ["llama", "llama-biased", "qwen2", "qwen3", "mistral"]


def score(scorer: Scorer, *calls: Tokens) -> np.ndarray:
    answers, _ = scorer.score([ScoreRequest(call.prompt(), LABELS, OPTIONS) for call in calls])
    return np.concatenate([answer.scores for answer in answers])


@pytest.mark.parametrize("rows", [0, 1, 10, 300, 1_920])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 96), (960, 576), (6_144, 1_024), (1_024, 3_072)])
def test_a_product_has_the_bits_of_pytorch(rows: int, outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = quantise(torch.randn(outputs, inputs, generator=generator).cuda(), INT8)
    x = quantise(torch.randn(rows, inputs, generator=generator).cuda(), INT8)
    bias = torch.randn(outputs, generator=generator).bfloat16().cuda()
    for added in (None, bias):
        linear = Int8Linear(weight, torch.bfloat16, added)
        found = linear(x)
        assert torch.equal(found, linear.reference(x))
        # The control: a product with the weight of another output.
        moved = Int8Linear(quantise(weight.values.float().roll(1, 0), INT8), torch.bfloat16, added)
        assert not rows or not torch.equal(moved(x), found)


@pytest.mark.parametrize(("outputs", "inputs"), [(6_144, 1_024), (1_024, 3_072)])
def test_a_row_has_the_same_bits_for_any_number_of_rows(outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(1)
    linear = Int8Linear(
        quantise(torch.randn(outputs, inputs, generator=generator).cuda(), INT8), torch.bfloat16
    )
    x = torch.randn(4_096, inputs, generator=generator).cuda()
    together = linear(quantise(x, INT8))
    for rows in (1, 16, 127, 128, 500, 2_048):
        assert torch.equal(linear(quantise(x[:rows], INT8)), together[:rows])


@pytest.mark.parametrize("family", ROTATED)
def test_scores_are_nearer_to_float32_than_those_of_fp8(family: str, tmp_path: Path) -> None:
    """On average over thirty items and three labels; steps are 1/127 of a peak instead of 1/16 of a value."""
    checkpoint = make(family, tmp_path)
    call = random_tokens(np.random.default_rng(6), 13, ITEMS, VOCABULARY)
    truth = Truth(checkpoint).scores(call.query, call.items, LABELS.tolist(), apply_softmax=True)
    ours, fp8 = (
        np.abs(score(Scorer(checkpoint, "cuda", dtype, 1_024), call) - truth).mean()
        for dtype in ("int8", "fp8")
    )
    assert ours < fp8


@pytest.mark.parametrize("family", ROTATED)
def test_a_graph_equals_eager(family: str, tmp_path: Path) -> None:
    scorer = Scorer(make(family, tmp_path), "cuda", "int8", 1_024, query_cache_bytes=0)
    shapes = [(13, ITEMS), (90, [31, 64, 2]), (6, [])]
    calls = [random_tokens(np.random.default_rng(7), query, items, VOCABULARY) for query, items in shapes]
    graph = score(scorer, *calls)
    assert isinstance(scorer.runner, CudaRunner)
    assert scorer.runner._graphs
    scorer.runner._graphs.clear()
    np.testing.assert_array_equal(score(scorer, *calls), graph)


def test_what_is_not_finite_fails_its_own_call_alone(tmp_path: Path) -> None:
    scorer = Scorer(make("qwen3", tmp_path), "cuda", "int8", 1_024, query_cache_bytes=0)
    good, bad = Tokens([1, 2], [[3], [4]]), Tokens([1, 2], [[3], [123]])
    alone = score(scorer, good)
    scorer.runner._decoder.weights.embedding[123, 7] = float("nan")
    answers, _ = scorer.score([ScoreRequest(call.prompt(), LABELS, OPTIONS) for call in (good, bad)])
    assert not hasattr(answers[1], "scores")
    np.testing.assert_allclose(answers[0].scores, alone, atol=5e-3, rtol=0)
