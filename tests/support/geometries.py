"""Geometries of checkpoints that people deploy, without their weights."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import AutoConfig

from hiscore.models.config import Architecture, from_config

QWEN3: dict[str, Any] = {
    "model_type": "qwen3",
    "vocab_size": 151_936,
    "head_dim": 128,
    "num_key_value_heads": 8,
}


@dataclass(frozen=True)
class Geometry:
    config: dict[str, Any]
    parameters: float


GEOMETRIES = {
    "SmolLM2-135M": Geometry(
        {
            "model_type": "llama", "vocab_size": 49_152, "hidden_size": 576, "intermediate_size": 1_536,
            "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
            "max_position_embeddings": 8_192,
        },
        134.5e6,
    ),
    "Qwen3-0.6B": Geometry(
        QWEN3
        | {
            "hidden_size": 1_024, "intermediate_size": 3_072, "num_hidden_layers": 28, "num_attention_heads": 16,
            "max_position_embeddings": 40_960,
        },
        596e6,
    ),
    "Qwen3-4B-2507": Geometry(
        QWEN3
        | {
            "hidden_size": 2_560, "intermediate_size": 9_728, "num_hidden_layers": 36, "num_attention_heads": 32,
            "max_position_embeddings": 262_144,
        },
        4.02e9,
    ),
    "Qwen3-8B": Geometry(
        QWEN3
        | {
            "hidden_size": 4_096, "intermediate_size": 12_288, "num_hidden_layers": 36,
            "num_attention_heads": 32, "max_position_embeddings": 40_960,
        },
        8.19e9,
    ),
    "Llama-3.1-8B": Geometry(
        {
            "model_type": "llama", "vocab_size": 128_256, "hidden_size": 4_096, "intermediate_size": 14_336,
            "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "max_position_embeddings": 131_072,
        },
        8.03e9,
    ),
    "Mistral-Nemo-12B": Geometry(
        {
            "model_type": "mistral", "vocab_size": 131_072, "hidden_size": 5_120, "intermediate_size": 14_336,
            "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
            "max_position_embeddings": 1_024_000, "sliding_window": None,
        },
        12.25e9,
    ),
    # The memory of keys and values is that of a dense model with its attention; a token takes 8 experts of 768.
    "Qwen3-30B-A3B": Geometry(
        QWEN3
        | {
            "num_key_value_heads": 4, "hidden_size": 2_048, "intermediate_size": 8 * 768,
            "num_hidden_layers": 48, "num_attention_heads": 32, "max_position_embeddings": 40_960,
        },
        30.53e9,
    ),
}  # fmt: skip


@cache
def architecture(name: str) -> Architecture:
    """Of a geometry, with the checkpoint's own context."""
    config = dict(GEOMETRIES[name].config)
    family = config.pop("model_type")
    return from_config(AutoConfig.for_model(family, architectures=["XForCausalLM"], **config))
