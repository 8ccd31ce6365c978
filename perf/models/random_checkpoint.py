"""Random checkpoints with a real model's geometry: as fast as the real one, without its weights."""

import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from safetensors.torch import save_file

from hiscore.parallel.rank import Rank
from perf.models.geometries import GEOMETRIES, LATENT


def config_of(name: str, context: int | None = None) -> dict[str, Any]:
    """The config.json of a geometry; `context` replaces the model's own context length."""
    config = dict(GEOMETRIES[name])
    if context:
        config["max_position_embeddings"] = context
    return config


def write(name: str, directory: Path, seed: int = 0, device: str = "cpu", context: int | None = None) -> Path:
    """Write a seeded random checkpoint in bfloat16, with the families' own standard deviation (0.02)."""
    save(config_of(name, context), directory, seed, device)
    return directory


def save(config: dict[str, Any], directory: Path, seed: int = 0, device: str = "cpu") -> None:
    """Like `write`, for a config.json."""
    save_config(config, directory)
    shard = Shard(config, seed, device)
    save_file(
        {name: shard.get_tensor(name).cpu() for name in shard.keys()},  # noqa: SIM118
        directory / "model.safetensors",
    )


def write_config(name: str, directory: Path, context: int | None = None) -> Path:
    """Write config.json only; the weights come from `in_memory`."""
    return save_config(config_of(name, context), directory)


def save_config(config: dict[str, Any], directory: Path) -> Path:
    """Like `write_config`, for given contents."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    return directory


@contextmanager
def in_memory(device: str, seed: int = 0) -> Iterator[None]:
    """Inside the context, loaded checkpoints get the weights that `write` would have written, drawn on the device.

    A CPU and a GPU draw different weights from one seed.
    """

    def shards(checkpoint: Path) -> Iterator[Shard]:
        yield Shard(json.loads((checkpoint / "config.json").read_text()), seed, device)

    with mock.patch("hiscore.models.quantization.tensors._open_shards", shards):
        yield


def draw_on(rank: Rank) -> None:
    """Let a rank load weights that are drawn on its device (`in_memory`) from now on."""
    # Held: a context that is collected ends.
    rank.held["drawn"] = context = in_memory(str(rank.device))
    context.__enter__()


class Shard:
    """An open safetensors file, as far as the loader uses it. A tensor exists once it is asked for."""

    def __init__(self, config: dict[str, Any], seed: int, device: str) -> None:
        self._seed, self._device, self._shapes = seed, device, tensors(config)

    def keys(self) -> list[str]:
        return list(self._shapes)

    def get_slice(self, name: str) -> "Slice":
        return Slice(self, name)

    def shape_and_dtype(self, name: str) -> tuple[tuple[int, ...], str]:
        """A tensor's shape, and its dtype as files name it."""
        return self._shapes[name], "BF16"

    def get_tensor(self, name: str) -> torch.Tensor:
        return draw(name, self._shapes[name], self._seed, self._device)


class Slice:
    """Parts of a tensor, which is drawn whole for each."""

    def __init__(self, shard: Shard, name: str) -> None:
        self._shard, self._name = shard, name

    def get_shape(self) -> list[int]:
        return list(self._shard.shape_and_dtype(self._name)[0])

    def get_dtype(self) -> str:
        return self._shard.shape_and_dtype(self._name)[1]

    def __getitem__(self, part: Any) -> torch.Tensor:
        return self._shard.get_tensor(self._name)[part]


def draw(name: str, shape: tuple[int, ...], seed: int, device: str) -> torch.Tensor:
    """Draw one tensor of a checkpoint in bfloat16; name and seed determine it."""
    # The CPU's generator uses 32 bits of a seed.
    generator = torch.Generator(device).manual_seed(zlib.crc32(f"{seed} {name}".encode()))
    values = torch.randn(shape, generator=generator, device=device, dtype=torch.bfloat16)
    if name.endswith("norm.weight"):
        return values.mul_(0.1).add_(1)
    return values.mul_(0.3 if name.endswith("conv1d.weight") else 0.02)


def tensors(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Names and shapes of all tensors of a checkpoint."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    all_shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
    }
    if not config["tie_word_embeddings"]:
        all_shapes["lm_head.weight"] = (vocabulary, hidden)
    of_layer = _latent_layer if config["model_type"] in LATENT else _grouped_layer
    for layer in range(config["num_hidden_layers"]):
        all_shapes |= {
            f"model.layers.{layer}.{name}": shape for name, shape in of_layer(config, layer).items()
        }
    return all_shapes


def _grouped_layer(config: dict[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    hidden, dim = config["hidden_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    interval = config.get("full_attention_interval", 1)
    outside = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        **_experts(config, "num_experts"),
    }
    if (layer + 1) % interval:
        return _gated_delta_net(config) | outside
    if config["model_type"] == "qwen2":
        of_attention = {"q_proj.bias": (q,), "k_proj.bias": (kv,), "v_proj.bias": (kv,)}
    else:
        of_attention = {"q_norm.weight": (dim,), "k_norm.weight": (dim,)}
    return {
        # Where other layers are gated delta nets, queries bring gates.
        "self_attn.q_proj.weight": (q if interval == 1 else 2 * q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        **{f"self_attn.{name}": shape for name, shape in of_attention.items()},
        **outside,
    }


def _gated_delta_net(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    c, hidden, heads = config, config["hidden_size"], config["linear_num_value_heads"]
    values = heads * c["linear_value_head_dim"]
    channels = 2 * c["linear_num_key_heads"] * c["linear_key_head_dim"] + values
    return {
        "linear_attn.in_proj_qkv.weight": (channels, hidden),
        "linear_attn.in_proj_z.weight": (values, hidden),
        "linear_attn.in_proj_b.weight": (heads, hidden),
        "linear_attn.in_proj_a.weight": (heads, hidden),
        "linear_attn.conv1d.weight": (channels, 1, c["linear_conv_kernel_dim"]),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (c["linear_value_head_dim"],),
        "linear_attn.out_proj.weight": (hidden, values),
    }


def _latent_layer(config: dict[str, Any], layer: int) -> dict[str, tuple[int, ...]]:
    c, hidden = config, config["hidden_size"]
    heads, index_dim = c["num_attention_heads"], c["index_head_dim"]
    q_dim = c["qk_nope_head_dim"] + c["qk_rope_head_dim"]
    all_shapes = {
        "self_attn.q_a_proj.weight": (c["q_lora_rank"], hidden),
        "self_attn.q_a_layernorm.weight": (c["q_lora_rank"],),
        "self_attn.q_b_proj.weight": (heads * q_dim, c["q_lora_rank"]),
        "self_attn.kv_a_proj_with_mqa.weight": (c["kv_lora_rank"] + c["qk_rope_head_dim"], hidden),
        "self_attn.kv_a_layernorm.weight": (c["kv_lora_rank"],),
        "self_attn.kv_b_proj.weight": (heads * (c["qk_nope_head_dim"] + c["v_head_dim"]), c["kv_lora_rank"]),
        "self_attn.o_proj.weight": (hidden, heads * c["v_head_dim"]),
        "self_attn.indexer.wq_b.weight": (c["index_n_heads"] * index_dim, c["q_lora_rank"]),
        "self_attn.indexer.wk.weight": (index_dim, hidden),
        "self_attn.indexer.k_norm.weight": (index_dim,),
        "self_attn.indexer.k_norm.bias": (index_dim,),
        "self_attn.indexer.weights_proj.weight": (c["index_n_heads"], hidden),
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    if layer < c["first_k_dense_replace"]:
        return all_shapes | _mlp("mlp", hidden, c["intermediate_size"])
    all_shapes |= _experts(c, "n_routed_experts")
    all_shapes["mlp.gate.e_score_correction_bias"] = (c["n_routed_experts"],)
    shared = c["moe_intermediate_size"] * c["n_shared_experts"]
    return all_shapes | _mlp("mlp.shared_experts", hidden, shared)


def _experts(config: dict[str, Any], count_key: str) -> dict[str, tuple[int, ...]]:
    """A router and its experts, or an ordinary MLP where the config names no experts."""
    hidden, count = config["hidden_size"], config.get(count_key, 0)
    if not count:
        return _mlp("mlp", hidden, config["intermediate_size"])
    all_shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (count, hidden)}
    for expert in range(count):
        all_shapes |= _mlp(f"mlp.experts.{expert}", hidden, config["moe_intermediate_size"])
    return all_shapes


def _mlp(prefix: str, hidden: int, width: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}.gate_proj.weight": (width, hidden),
        f"{prefix}.up_proj.weight": (width, hidden),
        f"{prefix}.down_proj.weight": (hidden, width),
    }
