"""Quantised checkpoints on one CUDA GPU: what is dequantised there, and what stays in fp8."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.layers import scaled_fp8
from hiscore.layers.fp8 import FP8
from hiscore.layers.scaled_fp8 import ScaledLinear
from hiscore.layers.weights import Linear, Scales
from hiscore.models.decoder import Decoder
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from tests.support import quantised, tiny_models
from tests.support.comparison import check, truth_of
from tests.support.layers import random
from tests.support.quantised import SCHEMES
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

CALL = random_tokens(np.random.default_rng(0), 13, [1, 7, 20, 3] * 4, tiny_models.VOCABULARY)


def written(scheme: str, directory: Path) -> tuple[Path, Path]:
    dense = tiny_models.make("llama-biased", directory / "dense")
    leave = ("layers.1.self_attn",)
    return quantised.make(dense, SCHEMES[scheme](), directory / "quantised", leave), dense


@pytest.mark.parametrize("scheme", SCHEMES)
def test_float32_scores_are_those_of_the_dequantised_weights(scheme: str, tmp_path: Path) -> None:
    checkpoint, dense = written(scheme, tmp_path)
    (found,) = score(load_decoder_scorer(checkpoint, "cuda", "float32", 4_096), [CALL], ScoreOptions())
    check(found, truth_of(dense).scores(CALL.query, CALL.items, LABELS), over_vocabulary=True)


@pytest.mark.parametrize("scheme", ["fp8-tensor", "fp8-channel", "fp8-block-32", "compressed-fp8-channel"])
def test_a_checkpoint_in_fp8_keeps_it(scheme: str, tmp_path: Path) -> None:
    checkpoint, dense = written(scheme, tmp_path)
    scorer = load_decoder_scorer(checkpoint, "cuda", "auto", 1_024)
    (found,) = score(scorer, [CALL], ScoreOptions(apply_softmax=True))
    truth = truth_of(dense).scores(CALL.query, CALL.items, LABELS, apply_softmax=True)
    # As on the CPU, where 0.037 was seen: inputs of products are rounded to 4 bits.
    assert np.abs(found - truth).mean() < 0.06
    assert np.abs(found - np.roll(truth, 1, axis=0)).mean() > 0.1
    layers = Decoder(checkpoint, torch.device("cuda"), torch.bfloat16, fp8=True).weights.layers
    assert [isinstance(layer.qkv, Linear) for layer in layers] == [False, True, False, False]


@pytest.mark.parametrize("rows", [1, 17, 500, 4_000])
def test_a_product_with_scales_for_blocks_equals_pytorch(rows: int) -> None:
    """Qwen3-8B's sizes: bits of a row that do not depend on the others, and the product of the dequantised."""
    values, scales = random(4_096, 12_288, seed=1).to(FP8), random(4_096, 96, seed=2).abs() * 0.01
    linear = ScaledLinear(values, Scales(scales, 1, 128, powers_of_two=False))
    x = random(rows, 12_288, seed=3).bfloat16()
    found, expected = linear(x), scaled_fp8.multiply(x, values, linear.scales)
    # One rounding to 8 bits, and the tensor cores' own sums of 128 terms.
    torch.testing.assert_close(found.float(), expected.float(), atol=2e-2, rtol=1e-2)
    if rows > 16:  # fewer have another tile, and a scorer pads to 128
        alone = linear(x[:17])
        assert torch.equal(found[:17], alone)
