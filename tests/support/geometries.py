"""Geometries of checkpoints that people deploy, without their weights."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from transformers import AutoConfig

from hiscore.models.config import Architecture, from_config


@dataclass(frozen=True)
class Geometry:
    config: dict[str, Any]
    parameters: float


SIZES = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "max_position_embeddings"),
)


def geometry(model_type: str, parameters: float, *sizes: int, **more: Any) -> Geometry:
    return Geometry({"model_type": model_type, **dict(zip(SIZES, sizes, strict=True)), **more}, parameters)


GEOMETRIES = {
    "SmolLM2-135M": geometry("llama", 134.5e6, 49_152, 576, 1_536, 30, 9, 3, 8_192),
    "Qwen3-0.6B": geometry("qwen3", 596e6, 151_936, 1_024, 3_072, 28, 16, 8, 40_960, head_dim=128),
    "Qwen3-4B-2507": geometry("qwen3", 4.02e9, 151_936, 2_560, 9_728, 36, 32, 8, 262_144, head_dim=128),
    "Qwen3-8B": geometry("qwen3", 8.19e9, 151_936, 4_096, 12_288, 36, 32, 8, 40_960, head_dim=128),
    "Llama-3.1-8B": geometry("llama", 8.03e9, 128_256, 4_096, 14_336, 32, 32, 8, 131_072),
    "Mistral-Nemo-12B": geometry(
        "mistral", 12.25e9, 131_072, 5_120, 14_336, 40, 32, 8, 1_024_000, head_dim=128, sliding_window=None
    ),
    "Qwen3-30B-A3B": geometry("qwen3", 30.53e9, 151_936, 2_048, 6_144, 48, 32, 4, 40_960, head_dim=128),
}


@cache
def architecture(name: str) -> Architecture:
    """Of a geometry, with the checkpoint's own context."""
    config = dict(GEOMETRIES[name].config)
    family = config.pop("model_type")
    return from_config(AutoConfig.for_model(family, architectures=["XForCausalLM"], **config))
