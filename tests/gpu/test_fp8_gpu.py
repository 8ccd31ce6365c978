"""Projections in fp8 on one CUDA GPU, against what they should compute worked out in plain arithmetic.

Steps of 1/8 turn the last bit of a bfloat16 now and then into a sixteenth of a value. So what is computed in
another order is held to tight bounds product by product (the kernels' own steps are held to the same bits by
tests/unit/layers/test_triton_ops.py), and whole models to a share of what fp8 itself changes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.layers.fp8 import FP8_CAPABILITY, Fp8Linear, quantise
from hiscore.layers.weights import Linear
from hiscore.prefill.cuda_runner import CudaRunner
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from tests.support import tiny_models
from tests.support.fp8 import EmulatedLinear, emulated_scorer
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_models import ATTENDING, FAMILIES, SIZES, VOCABULARY, make
from tests.support.truth import Truth

HAS_FP8 = torch.cuda.is_available() and torch.cuda.get_device_capability() >= FP8_CAPABILITY
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not HAS_FP8, reason="no CUDA GPU that computes in fp8")]

LABELS = np.array([5, 77, 401], np.int32)
OPTIONS = ScoreOptions(apply_softmax=True)
ITEMS = [0, *range(1, 30)]


def score(scorer: Scorer, *calls: Tokens) -> np.ndarray:
    answers, _ = scorer.score([ScoreRequest(call.prompt(), LABELS, OPTIONS) for call in calls])
    return np.concatenate([answer.scores for answer in answers])


def ranks(values: np.ndarray) -> np.ndarray:
    return values.argsort(axis=0).argsort(axis=0)


@pytest.mark.parametrize("rows", [0, 1, 10, 300, 1_920])
@pytest.mark.parametrize(("outputs", "inputs"), [(64, 96), (960, 576), (6_144, 1_024), (1_024, 3_072)])
def test_a_product_equals_the_emulated_one(rows: int, outputs: int, inputs: int) -> None:
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(outputs, inputs, generator=generator) * inputs**-0.5
    bias = torch.randn(outputs, generator=generator).bfloat16()
    x = torch.randn(rows, inputs, generator=generator).bfloat16()
    # bfloat16's step, and for sums of terms that add up to at most 50 in size the tensor cores' 14 bits.
    # Two steps of bfloat16: three of 11.8 million values were seen to round twice the other way.
    bounds = {"rtol": 2**-6, "atol": 2**-6}
    for added in (None, bias):
        ours = Fp8Linear(quantise(weight.cuda()), None if added is None else added.cuda())
        found = ours(quantise(x.cuda())).cpu()
        assert found.shape == (rows, outputs)
        torch.testing.assert_close(found, EmulatedLinear(Linear(weight, added))(x), **bounds)
    if rows:
        # The control: fp8 loses by far more than these bounds allow.
        with pytest.raises(AssertionError):
            torch.testing.assert_close(found, (x.float() @ weight.T + bias).bfloat16(), **bounds)


def of_one_layer(model_type: str, settings: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """A family whose settings by layer are the first one's."""
    by_layer = ("layer_types", "no_rope_layers")
    return model_type, {key: value[:1] if key in by_layer else value for key, value in settings.items()}


def test_models_of_one_layer_equal_the_emulated_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every family's projections, on average over families far nearer to the emulation than bfloat16's are."""
    monkeypatch.setitem(SIZES, "num_hidden_layers", 1)
    monkeypatch.setattr(
        tiny_models, "FAMILIES", {name: of_one_layer(*family) for name, family in FAMILIES.items()}
    )
    call = random_tokens(np.random.default_rng(6), 13, ITEMS, VOCABULARY)
    distances = []
    for family in ATTENDING:
        checkpoint = make(family, tmp_path / family)
        expected = score(emulated_scorer(checkpoint), call)
        distances.append(
            [
                np.abs(score(load_decoder_scorer(checkpoint, "cuda", dtype, 1_024), call) - expected).mean()
                for dtype in ("fp8", "bfloat16")
            ]
        )
    ours, without = np.mean(distances, axis=0)
    # What a bfloat16 rounding of attention alone does to the emulation was 0.2 of the second.
    assert ours < 0.4 * without, distances


@pytest.mark.parametrize("family", ATTENDING)
def test_scores_are_as_near_to_float32_as_fp8_can_be(family: str, tmp_path: Path) -> None:
    """Against transformers, after four layers of wide random weights: the emulation's distance and a half more."""
    checkpoint = make(family, tmp_path)
    call = random_tokens(np.random.default_rng(6), 13, ITEMS, VOCABULARY)
    truth = Truth(checkpoint).scores(call.query, call.items, LABELS.tolist(), apply_softmax=True)
    emulated = score(emulated_scorer(checkpoint), call)
    found = score(load_decoder_scorer(checkpoint, "cuda", "fp8", 1_024), call)
    assert np.abs(found - truth).mean() < 1.5 * np.abs(emulated - truth).mean()
    for column in range(len(LABELS)):
        assert np.corrcoef(ranks(found)[:, column], ranks(truth)[:, column])[0, 1] > 0.8


@pytest.mark.parametrize("family", ATTENDING)
def test_a_graph_equals_eager(family: str, tmp_path: Path) -> None:
    scorer = load_decoder_scorer(make(family, tmp_path), "cuda", "fp8", 1_024, query_cache_bytes=0)
    shapes = [(13, ITEMS), (90, [31, 64, 2]), (6, [])]
    calls = [random_tokens(np.random.default_rng(7), query, items, VOCABULARY) for query, items in shapes]
    graph = score(scorer, *calls)
    assert isinstance(scorer.runner, CudaRunner)
    assert scorer.runner._graphs
    scorer.runner._graphs.clear()
    np.testing.assert_array_equal(score(scorer, *calls), graph)
    assert score(scorer, calls[-1]).shape == (0, len(LABELS))  # nothing to read: the tail has no rows
