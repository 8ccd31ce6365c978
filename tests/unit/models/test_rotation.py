"""Rotations: orthogonal, spread over all columns, and folded into a checkpoint without a change of its scores."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.layers.eight_bits import EightBits
from hiscore.models.config import read_architecture
from hiscore.models.decoder import Decoder
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.families import DECODER_FAMILIES
from hiscore.models.int8 import PROJECTIONS, Int8Design
from hiscore.models.loader import load_weights
from hiscore.models.rotation import Fold, Rotation
from hiscore.models.text_towers import TEXT_TOWERS
from hiscore.prefill.runner import TorchRunner
from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_models import FAMILIES, VOCABULARY, WITHOUT_CLASSIFIER, make

CPU = torch.device("cpu")
LABELS = np.array([5, 77, 401], np.int32)
OPTIONS = ScoreOptions(apply_softmax=True)
CALL = random_tokens(np.random.default_rng(6), 13, [1, 7, 0, 20, 3] * 4, VOCABULARY)
ONLY_FOLDED = Int8Design(kept=frozenset(PROJECTIONS))


def rotatable(family: str) -> bool:
    model_type, changes = FAMILIES[family]
    default, *_ = TEXT_TOWERS.get(model_type, (model_type,))
    name = changes.get("text_config", {}).get("model_type", default)
    return DECODER_FAMILIES[name].unrotatable is None


ROTATABLE = [family for family in FAMILIES if rotatable(family)]


@pytest.mark.parametrize("size", [1, 2, 9, 64, 96, 576, 896, 2_048])
def test_a_rotation_is_orthogonal_and_has_no_large_number(size: int) -> None:
    rotation = Rotation.of(size)
    matrix = rotation.columns(torch.eye(size, dtype=torch.float64))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=torch.float64))
    # Hadamard's are 1, Hartley's at most the root of 2, over the root of the size.
    assert matrix.abs().max() <= 2**0.5 * size**-0.5 + 1e-12
    x = torch.randn(5, 3 * size, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    by_blocks = (x.unflatten(1, (3, size)) @ matrix).flatten(1)
    torch.testing.assert_close(rotation.columns(x), by_blocks)
    torch.testing.assert_close(rotation.rows(x.T), by_blocks.T)
    torch.testing.assert_close(rotation.vector(x[0]), by_blocks[0])
    assert not torch.equal(Rotation.of(size, seed=1).signs, rotation.signs) or size < 3


def test_an_outlier_is_spread_over_all_columns() -> None:
    x = torch.zeros(1, 576, dtype=torch.float64)
    x[0, 100] = 576.0
    assert Rotation.of(576).columns(x).abs().max() <= 2**0.5 * 576**0.5 + 1e-9


def test_a_fold_is_what_it_says_in_plain_products() -> None:
    generator = torch.Generator().manual_seed(2)
    weight, norm, bias = (torch.randn(*shape, generator=generator) for shape in ((24, 16), (16,), (24,)))
    inputs, outputs = Rotation.of(16), Rotation.of(4, seed=1)
    fold = Fold(None, norm, inputs, outputs, first_output=8)
    left = torch.block_diag(torch.eye(8), *[outputs.columns(torch.eye(4))] * 4)
    right = inputs.columns(torch.eye(16))
    torch.testing.assert_close(fold.weight(weight), left.T @ (weight * norm) @ right)
    torch.testing.assert_close(fold.bias(bias), left.T @ bias)


def score(scorer: Scorer, call: Tokens = CALL) -> np.ndarray:
    labels = np.empty(0, np.int32) if scorer.facts.is_classifier else LABELS
    options = ScoreOptions() if scorer.facts.is_classifier else OPTIONS
    ((answer,), _) = scorer.score([ScoreRequest(call.prompt(), labels, options)])
    return answer.scores


def with_design(checkpoint: Path, design: Int8Design) -> Scorer:
    """A scorer in int8 of another design than the one that is served."""
    scorer = Scorer(checkpoint, "cpu", "int8", 1_024, query_cache_bytes=0)
    assert isinstance(scorer.runner, TorchRunner)
    decoder = scorer.runner._decoder
    architecture, _ = read_architecture(checkpoint)
    decoder.weights = load_weights(
        checkpoint, architecture, CPU, torch.float32, EightBits.INT8, design=design
    )
    scorer.compute_with(replace(scorer._computation, head=decoder.head()))
    return scorer


@pytest.mark.slow
@pytest.mark.parametrize("family", ROTATABLE)
def test_what_is_folded_and_not_quantised_scores_the_same(family: str, tmp_path: Path) -> None:
    checkpoint = make(family, tmp_path)
    expected = score(Scorer(checkpoint, "cpu", "float32", 1_024, query_cache_bytes=0))
    folded = with_design(checkpoint, ONLY_FOLDED)
    # The contract's bound in float32: products are added up in another order, weights rounded once more.
    np.testing.assert_allclose(score(folded), expected, atol=2e-5, rtol=0)
    # The control: one weight of another rotation.
    decoder = folded.runner._decoder
    layer = decoder.weights.layers[1]
    turned = Rotation.of(layer.mlp.down.weight.shape[0], seed=1).rows(layer.mlp.down.weight)
    wrong = replace(layer, mlp=replace(layer.mlp, down=replace(layer.mlp.down, weight=turned)))
    decoder.weights = replace(
        decoder.weights, layers=(decoder.weights.layers[0], wrong, *decoder.weights.layers[2:])
    )
    assert np.abs(score(folded) - expected).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted({"llama-biased", "qwen3", "gemma"} - set(WITHOUT_CLASSIFIER)))
def test_a_classifier_is_folded_likewise(family: str, tmp_path: Path) -> None:
    checkpoint = make(family, tmp_path, labels=3)
    expected = score(Scorer(checkpoint, "cpu", "float32", 1_024, query_cache_bytes=0))
    # Raw logits of some ten in size, so a few times the bound above.
    np.testing.assert_allclose(score(with_design(checkpoint, ONLY_FOLDED)), expected, atol=2e-4, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("family", [family for family in FAMILIES if not rotatable(family)])
def test_what_cannot_be_folded_is_refused_by_name(family: str, tmp_path: Path) -> None:
    with pytest.raises(
        UnsupportedCheckpoint, match=r"DTYPE is int8, and .* has .*: set DTYPE to bfloat16 or fp8"
    ):
        Decoder(make(family, tmp_path), CPU, torch.float32, EightBits.INT8)
