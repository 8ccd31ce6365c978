"""Random checkpoints of a real model's geometry: the speed of the real one, without its weights."""

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

GEOMETRIES = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 1_024,
        "intermediate_size": 3_072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "hidden_act": "silu",
        "max_position_embeddings": 40_960,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "torch_dtype": "bfloat16",
    },
}


def write(name: str, directory: Path, seed: int = 0, device: str = "cpu") -> Path:
    """Write a seeded random checkpoint in bfloat16, as wide as the family initialises its weights (0.02)."""
    config = GEOMETRIES[name]
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    generator = torch.Generator(device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        values = torch.randn(*shape, generator=generator, device=device) * 0.02
        return values.to("cpu", torch.bfloat16)

    def ones(width: int) -> torch.Tensor:
        values = 1 + 0.1 * torch.randn(width, generator=generator, device=device)
        return values.to("cpu", torch.bfloat16)

    hidden, ffn, dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    tensors = {
        "model.embed_tokens.weight": normal(config["vocab_size"], hidden),
        "model.norm.weight": ones(hidden),
    }
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}"
        shapes = {"q": (q, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, q)}
        tensors |= {
            f"{prefix}.self_attn.{part}_proj.weight": normal(*shape) for part, shape in shapes.items()
        }
        shapes = {"gate": (ffn, hidden), "up": (ffn, hidden), "down": (hidden, ffn)}
        tensors |= {f"{prefix}.mlp.{part}_proj.weight": normal(*shape) for part, shape in shapes.items()}
        for norm in ("q_norm", "k_norm"):
            tensors[f"{prefix}.self_attn.{norm}.weight"] = ones(dim)
        for norm in ("input_layernorm", "post_attention_layernorm"):
            tensors[f"{prefix}.{norm}.weight"] = ones(hidden)
    save_file(tensors, directory / "model.safetensors")
    return directory
