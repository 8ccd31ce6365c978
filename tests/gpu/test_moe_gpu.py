"""Experts on one CUDA GPU: against PyTorch, whole checkpoints against the CPU, and inside CUDA graphs."""

from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.layers import moe_triton
from hiscore.layers.moe import looped, route
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from tests.support import tiny_models
from tests.support.comparison import check, truth_of
from tests.support.layers import random
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens
from tests.unit.layers.test_moe import ACTIVATIONS, experts

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

MOE_FAMILIES = [name for name in tiny_models.FAMILIES if name.startswith(("qwen3-moe", "mixtral", "gpt-oss"))]


@torch.inference_mode()
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("step", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 200, 3000])
def test_sixteen_bits_equal_pytorch(rows: int, step: bool, activation: str) -> None:
    weights = experts(activation, True, count=64, width=768, hidden=2048, dtype=torch.bfloat16)
    h = random(rows, 2048, seed=1).bfloat16()
    chosen, _ = route(weights, moe_triton.router_logits(weights, h))
    found, expected = moe_triton.expert_outputs(weights, h, chosen, step), looped(weights, h, chosen)
    # Both round to 8 bits between the products, and add up in another order: the largest terms' last bits.
    largest = expected.float().abs().max().item()
    torch.testing.assert_close(found, expected, atol=2**-6 * largest, rtol=0)
    assert (
        moe_triton.expert_outputs(weights, h, chosen.flip(1), step) - expected
    ).abs().max() > 2**-3 * largest


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_token_s_bits_do_not_depend_on_the_others(dtype: torch.dtype) -> None:
    weights = experts("silu", True, count=64, width=768, hidden=2048, dtype=dtype)
    h = random(1000, 2048, seed=2).to(dtype)
    together = moe_triton.moe(weights, h)
    for first, last in ((0, 1), (1, 40), (500, 1000), (999, 1000)):
        assert torch.equal(moe_triton.moe(weights, h[first:last]), together[first:last])


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_scores_equal_transformers(family: str, tmp_path: Path) -> None:
    checkpoint = tiny_models.make(family, tmp_path)
    call = random_tokens(np.random.default_rng(0), 13, [1, 7, 20, 3], tiny_models.VOCABULARY)
    (found,) = score(load_decoder_scorer(checkpoint, "cuda", "float32", 4_096), [call], ScoreOptions())
    check(found, truth_of(checkpoint).scores(call.query, call.items, LABELS), over_vocabulary=True)
