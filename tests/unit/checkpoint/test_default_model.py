"""The default model as it is served: real text from it, and how surprised it is by English."""

from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hiscore.checkpoint import resolve
from hiscore.settings import DEFAULT_MODEL

PARAGRAPH = """The water cycle describes how water moves through the Earth's atmosphere, land and oceans. \
The sun heats the surface of the sea, and some of the water evaporates into the air as vapor. As the warm air \
rises it cools, and the vapor condenses into tiny drops that form clouds. When the drops grow heavy enough they \
fall back to the ground as rain or snow, and rivers carry the water to the sea again."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return AutoTokenizer.from_pretrained(resolve(DEFAULT_MODEL))


@pytest.fixture
def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(resolve(DEFAULT_MODEL))


def perplexity(model: Any, tokenizer: Any) -> float:
    ids = tokenizer(PARAGRAPH, return_tensors="pt").input_ids
    with torch.no_grad():
        return float(model(ids, labels=ids).loss.exp())


@pytest.mark.slow
def test_perplexity_and_its_control(model: Any, tokenizer: Any) -> None:
    # Measured 8.2. Small models read plain expository English at about 10; the control measures 32.
    assert perplexity(model, tokenizer) < 12
    config = model.config
    for layer in model.model.layers:
        for projection, heads in (
            (layer.self_attn.q_proj, config.num_attention_heads),
            (layer.self_attn.k_proj, config.num_key_value_heads),
        ):
            weight = projection.weight.data
            halves = weight.view(heads, 2, config.head_dim // 2, -1)
            projection.weight.data = halves.transpose(1, 2).reshape(weight.shape)
    assert perplexity(model, tokenizer) > 24, "rows in llama.cpp's order must read far worse"
