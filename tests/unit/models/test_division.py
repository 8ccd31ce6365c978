"""Which models can be divided, by their config.json alone."""

import re
from typing import Any

import pytest

from hiscore.models.division import undividable

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
}
DSA: dict[str, Any] = {
    "model_type": "deepseek_v32",
    "num_attention_heads": 128,
    "num_key_value_heads": 128,
    "intermediate_size": 18_432,
    "moe_intermediate_size": 2_048,
    "n_shared_experts": 1,
    "n_routed_experts": 256,
}
MOE = LLAMA | {"model_type": "qwen3_moe", "num_experts": 4}


@pytest.mark.parametrize("ranks", [1, 2, 4, 8, 16])
def test_a_published_size_divides(ranks: int) -> None:
    """Sixteen ranks have each head of keys and values twice."""
    assert undividable(LLAMA, ranks) is None
    assert undividable(DSA, ranks) is None


SIX_HEADS = LLAMA | {"num_attention_heads": 48, "num_key_value_heads": 6}
WITH_IMAGES = {"model_type": "gemma3", "text_config": LLAMA | {"model_type": "gemma3_text"}}


@pytest.mark.parametrize(
    ("config", "ranks", "reason"),
    [
        (LLAMA, 3, "TENSOR_PARALLEL is 3, which does not divide num_attention_heads 32"),
        (SIX_HEADS, 4, "neither a divisor nor a multiple of num_key_value_heads 6"),
        (LLAMA | {"intermediate_size": 14_338}, 4, "does not divide intermediate_size 14338"),
        (MOE, 8, "more than the 4 experts"),
        ({"model_type": "bert"}, 2, "compute on one device"),
        (DSA, 3, "does not divide num_attention_heads 128"),
        (DSA | {"moe_intermediate_size": 2_050}, 4, "moe_intermediate_size x n_shared_experts 2050"),
        (DSA | {"n_routed_experts": 4}, 8, "more than the 4 experts"),
        # Of a model of texts and images, the tower that reads texts.
        (WITH_IMAGES, 3, "attention_heads 32"),
    ],
)
def test_what_does_not_is_named(config: dict[str, Any], ranks: int, reason: str) -> None:
    found = undividable(config, ranks)
    assert found is not None
    assert re.search(reason, found)
    assert undividable(config, 1) is None
