"""A checkpoint with its own weights for longer prompts than it was trained for."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from perf.models.longer_context import with_context
from tests.support import tiny_models


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("llama", tmp_path_factory.mktemp("llama"))


def test_a_context_that_is_long_enough_stays(llama: Path, tmp_path: Path) -> None:
    trained = json.loads((llama / "config.json").read_text())["max_position_embeddings"]
    assert with_context(llama, trained, tmp_path / "longer") == llama


def test_a_longer_one_has_the_weights_and_is_stretched_as_far(llama: Path, tmp_path: Path) -> None:
    trained = json.loads((llama / "config.json").read_text())["max_position_embeddings"]
    longer = with_context(llama, 4 * trained, tmp_path / "longer")
    short, long = (AutoModelForCausalLM.from_pretrained(path).model for path in (llama, longer))
    assert torch.equal(short.layers[0].mlp.up_proj.weight, long.layers[0].mlp.up_proj.weight)
    assert long.config.max_position_embeddings == 4 * trained
    # YaRN: the slowest dimension turns four times slower, the fastest as before.
    ratio = short.rotary_emb.inv_freq / long.rotary_emb.inv_freq
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(4, abs=1e-6)  # of float32
