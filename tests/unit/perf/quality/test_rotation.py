"""A rotated model gives the scores of the model as it was; quantised, it is not the same any more."""

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from perf.quality.eight_bits import Variant, apply
from perf.quality.rotation import hadamard, orthogonal, rotate
from tests.support import tiny_models


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    tiny_models.make("llama", tmp_path)
    return tmp_path


def logits(model: torch.nn.Module) -> torch.Tensor:
    ids = torch.arange(5, 37)[None]
    with torch.no_grad():
        return model(ids).logits[0, -1]


def load(checkpoint: Path) -> torch.nn.Module:
    return AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()


@pytest.mark.parametrize("size", [1, 2, 64])
def test_matrices_are_orthogonal(size: int) -> None:
    for matrix in (hadamard(size), orthogonal(size, 0)):
        torch.testing.assert_close(matrix @ matrix.T, torch.eye(size, dtype=torch.float64))


def test_rotation_changes_no_score_and_rounding_does(checkpoint: Path) -> None:
    truth = logits(load(checkpoint))
    # Float32's rounding of weights that were multiplied in float64.
    torch.testing.assert_close(logits(rotate(load(checkpoint))), truth, rtol=1e-4, atol=1e-5)
    rounded = logits(apply(load(checkpoint), Variant.all("int8", rotated=True)))
    assert 1e-4 < (rounded - truth).abs().max() < truth.abs().max()


def test_a_wrong_rotation_shows(checkpoint: Path) -> None:
    """The control."""
    truth, model = logits(load(checkpoint)), rotate(load(checkpoint))
    layer = model.model.layers[0].mlp
    layer.down_proj.weight = torch.nn.Parameter(layer.down_proj.weight.flip(0))
    assert (logits(model) - truth).abs().max() > 1e-3
