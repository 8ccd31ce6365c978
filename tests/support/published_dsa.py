"""Tiny checkpoints in the layout in which DeepSeek-V3.2-Exp and GLM-5-FP8 are published.

Linear layers are float8 with a scale for each 128x128 block, everything else is bfloat16 but the router's
correction; the layer that predicts a further token stands behind the last; the tensors are in several files.
Sizes are such that rows and columns of most weights end inside a block, as those of kv_a_proj_with_mqa do.

Source: README_WEIGHTS.md of DeepSeek-V3; config.json and inference/model.py of DeepSeek-V3.2-Exp.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.support import tiny_dsa

BLOCK = 128
SIZES: dict[str, Any] = {
    "hidden_size": 320,
    "intermediate_size": 448,
    "moe_intermediate_size": 192,
    "num_hidden_layers": 3,
    "kv_lora_rank": 160,
    "q_lora_rank": 192,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 48,
    "v_head_dim": 40,
    "index_head_dim": 32,
}
ROPE = {
    "type": "yarn",
    "factor": 4,
    "beta_fast": 32,
    "beta_slow": 1,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
    "original_max_position_embeddings": 128,
}
QUANTIZATION: dict[str, Any] = {
    "activation_scheme": "dynamic",
    "fmt": "e4m3",
    "quant_method": "fp8",
    "weight_block_size": [BLOCK, BLOCK],
}
OF_FAMILY: dict[str, dict[str, Any]] = {
    "deepseek-experts": {
        "rope_scaling": ROPE,
        "rope_theta": 10_000,
        "quantization_config": QUANTIZATION | {"scale_fmt": "ue8m0"},
    },
    "glm-experts": {
        "rope_parameters": {"rope_theta": 10_000, "rope_type": "default"},
        "rope_interleave": True,
        "indexer_rope_interleave": True,
        "quantization_config": QUANTIZATION | {"modules_to_not_convert": ["lm_head", "model.embed_tokens"]},
    },
}
PUBLISHED: dict[str, Any] = {
    "ep_size": 1,
    "moe_layer_freq": 1,
    "num_nextn_predict_layers": 1,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
    "torch_dtype": "bfloat16",
}
MADE_BY_TRANSFORMERS = ("dtype", "layer_types", "mlp_layer_types", "rope_parameters", "rope_scaling")
NOT_QUANTISED = ("embed_tokens", "lm_head", "weights_proj", "mlp.gate", "eh_proj", "shared_head")
FILES = 3


def make(family: str, directory: Path, **changes: Any) -> tuple[Path, Path]:
    """Write a checkpoint as published, and the same with its weights dequantised, in float32."""
    rope = tiny_dsa.YARN | {"mscale": 1.0, "mscale_all_dim": 1.0} if "deepseek" in family else None
    of_rope = {"rope_parameters": rope} if rope else {}
    dense = tiny_dsa.make(family, directory / "dense", **{**SIZES, **of_rope, **changes})
    stored: dict[str, Tensor] = {}
    tensors = load_file(dense / "model.safetensors")
    for name, tensor in tensors.items():
        parts, tensors[name] = _stored(name, tensor)
        stored |= parts
    save_file(tensors, dense / "model.safetensors", {"format": "pt"})
    config = json.loads((dense / "config.json").read_text())
    for name, tensor in lookahead_layer(stored, config):
        stored[name] = tensor
    kept = {key: value for key, value in config.items() if key not in MADE_BY_TRANSFORMERS}
    published = directory / "published"
    published.mkdir()
    (published / "config.json").write_text(json.dumps({**kept, **PUBLISHED, **OF_FAMILY[family]}))
    write_files(stored, published)
    return published, dense


def quantised(weight: Tensor) -> tuple[Tensor, Tensor]:
    """A weight in float8 and the scales of its blocks, which are powers of two as in the publication."""
    rows, columns = (-(-size // BLOCK) for size in weight.shape)
    scales = torch.empty(rows, columns)
    values = torch.empty_like(weight)
    for row in range(rows):
        for column in range(columns):
            part = (
                slice(row * BLOCK, (row + 1) * BLOCK),
                slice(column * BLOCK, (column + 1) * BLOCK),
            )
            scales[row, column] = torch.exp2(torch.log2(weight[part].abs().max() / 448).ceil())
            values[part] = weight[part] / scales[row, column]
    return values.to(torch.float8_e4m3fn), scales


def dequantised(values: Tensor, scales: Tensor) -> Tensor:
    row, column = (torch.arange(size) // BLOCK for size in values.shape)
    return values.float() * scales[row[:, None], column]


def _stored(name: str, tensor: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    module, _, last = name.rpartition(".")
    if last == "e_score_correction_bias":
        return {name: tensor}, tensor
    if tensor.ndim != 2 or any(module.endswith(part) for part in NOT_QUANTISED):
        rounded = tensor.bfloat16()
        return {name: rounded}, rounded.float()
    values, scales = quantised(tensor)
    return {name: values, f"{module}.weight_scale_inv": scales}, dequantised(values, scales)


def lookahead_layer(stored: dict[str, Tensor], config: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The layer behind the last: a layer like the last, and what joins a token to it."""
    count, hidden = config["num_hidden_layers"], config["hidden_size"]
    last, ahead = f"model.layers.{count - 1}.", f"model.layers.{count}."
    for name, tensor in list(stored.items()):
        if name.startswith(last):
            yield name.replace(last, ahead), tensor.clone()
    for norm in ("enorm", "hnorm", "shared_head.norm"):
        yield f"{ahead}{norm}.weight", torch.ones(hidden, dtype=torch.bfloat16)
    yield f"{ahead}eh_proj.weight", torch.randn(hidden, 2 * hidden).bfloat16()
    for table in ("embed_tokens", "shared_head.head"):
        yield f"{ahead}{table}.weight", torch.randn(config["vocab_size"], hidden).bfloat16()


def write_files(stored: dict[str, Tensor], directory: Path) -> None:
    names = sorted(stored)
    where = {}
    for number in range(FILES):
        file = f"model-{number + 1:05}-of-{FILES:06}.safetensors"
        part = {name: stored[name].contiguous() for name in names[number::FILES]}
        where |= dict.fromkeys(part, file)
        save_file(part, directory / file, {"format": "pt"})
    index = {"metadata": {"total_size": sum(each.nbytes for each in stored.values())}, "weight_map": where}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def read_files(directory: Path) -> dict[str, Tensor]:
    index = json.loads((directory / "model.safetensors.index.json").read_text())
    files = sorted(set(index["weight_map"].values()))
    return {name: tensor for file in files for name, tensor in load_file(directory / file).items()}
