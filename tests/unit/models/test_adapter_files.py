"""PEFT's adapter_config.json and the tensors beside it: each key is computed, without effect, or refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from hiscore.models.adapter_files import AdapterFacts, AdapterFiles, read_adapters
from hiscore.models.errors import UnsupportedCheckpoint

Q, OUT = "model.layers.0.self_attn.q_proj", "model.layers.11.self_attn.o_proj"
CONFIG: dict[str, Any] = {
    "peft_type": "LORA", "task_type": "CAUSAL_LM", "bias": "none", "r": 2, "lora_alpha": 6,
    "target_modules": ["q_proj", "o_proj"],
}  # fmt: skip
TENSORS = {
    f"{module}.lora_{part}.weight": (2, 8) if part == "A" else (8, 2) for module in (Q, OUT) for part in "AB"
}

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def made(tensors: dict[str, tuple[int, ...]] | None = None, **config: Any) -> Path:
        (tmp_path / "adapter_config.json").write_text(json.dumps(CONFIG | config))
        shapes = TENSORS | (tensors or {})
        named = {f"base_model.model.{name}": torch.zeros(shape) for name, shape in shapes.items() if shape}
        save_file(named, tmp_path / "adapter_model.safetensors")
        return tmp_path

    return made


KEYS: dict[str, Any] = {
    **dict.fromkeys(("use_dora", "lora_bias", "use_qalora", "a_key_of_next_year"), True),
    **dict.fromkeys(("use_bdlora", "arrow_config", "kasa_config", "velora_config", "megatron_config"), "a"),
    **{"layer_replication": [[0, 4]], "target_parameters": ["gate_up_proj"], "trainable_token_indices": [3]},
}
REFUSED: dict[str, tuple[dict[str, Any], dict[str, tuple[int, ...]], str]] = {
    "another method": ({"peft_type": "IA3"}, {}, "peft_type 'IA3'"),
    "another task": ({"task_type": "TOKEN_CLS"}, {}, "task_type 'TOKEN_CLS'"),
    "biases": ({"bias": "lora_only"}, {}, "bias 'lora_only'"),
    "a changed checkpoint": ({"init_lora_weights": "pissa_niter_4"}, {}, "init_lora_weights 'pissa_niter_4'"),
    **{key: ({key: value}, {}, f"'{key}', which is not computed") for key, value in KEYS.items()},
    "rank": ({"r": 3}, {}, r"q_proj.lora_A.weight' has shape \[2, 8\], the config announces rank 3"),
    "rank of one": ({"rank_pattern": {r"1.*o_proj": 4}}, {}, "layers.11.self_attn.o_proj.lora_A.*rank 4"),
    "half a pair": ({}, {f"{OUT}.lora_B.weight": ()}, f"no tensor '{OUT}.lora_B.weight'"),
    "no pair": ({}, dict.fromkeys(TENSORS, ()), "no pair of lora_A and lora_B"),
    "magnitudes": ({}, {f"{Q}.lora_magnitude_vector": (8,)}, "lora_magnitude_vector' is not computed"),
    "a head of tokens": ({}, {"lm_head.weight": (9, 8)}, "'lm_head.weight' is not computed"),
    "embeddings": ({}, {"model.embed_tokens.lora_embedding_A": (2, 9)}, "lora_embedding_A' is not computed"),
    "no head": ({"task_type": "SEQ_CLS", "modules_to_save": ["score"]}, {}, "no tensor 'score.weight'"),
    "another target": ({"target_modules": ["q_proj"]}, {}, f"adapts '{OUT}', which target_modules"),
    "an excluded one": ({"exclude_modules": ["o_proj"]}, {}, f"adapts '{OUT}', which target_modules"),
    "another layer": ({"layers_to_transform": [0]}, {}, f"adapts '{OUT}', which target_modules"),
    "a pattern of layers": (
        {"layers_to_transform": [0, 11], "layers_pattern": "blocks"}, {}, f"adapts '{Q}', which target_modules"
    ),
    "a factor of text": ({"lora_alpha": "x"}, {}, "cannot be read: TypeError"),
    "a broken pattern": ({"target_modules": "("}, {}, "cannot be read"),
    "a flat head": ({}, {"score.weight": (8,)}, r"'score.weight' has shape \[8\], which is no matrix"),
    "an invocation of nothing": ({"alora_invocation_tokens": []}, {}, "alora_invocation_tokens needs at"),
    "an invocation of a classifier": (
        {"alora_invocation_tokens": [3], "task_type": "SEQ_CLS"}, {}, "alora_invocation_tokens needs .* CAUSAL_LM"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_computed_is_refused_by_name(name: str, write: Write) -> None:
    config, tensors, says = REFUSED[name]
    with pytest.raises(UnsupportedCheckpoint, match=f"adapter 'mine': .*{says}"):
        AdapterFiles.read("mine", write(tensors, **config))


@pytest.mark.parametrize(
    "config",
    [
        {"target_modules": "all-linear"},
        {"target_modules": r".*self_attn\.[qo]_proj"},
        {"target_modules": [Q, "self_attn.o_proj"]},
        {"layers_to_transform": [0, 11]},
        {"layers_to_transform": [0, 11], "layers_pattern": ["h", "layers"]},
        {"exclude_modules": ["proj", "attn.o_proj"]},
        {"r": 4, "rank_pattern": {"self_attn.q_proj": 2, "o_proj": 2}},
        {"lora_dropout": 0.5, "fan_in_fan_out": True, "init_lora_weights": "eva", "eva_config": {"rho": 2.0}},
        {"use_dora": False, "a_key_of_next_year": None, "base_model_name_or_path": "elsewhere"},
    ],
)
def test_controls_of_the_same_keys_are_read(config: dict[str, Any], write: Write) -> None:
    assert AdapterFiles.read("mine", write(**config)).modules == [Q, OUT]


def test_the_factor_is_of_each_module(write: Write) -> None:
    """By alpha, rank and their patterns, of which the first that matches counts."""
    found = AdapterFiles.read("mine", write(alpha_pattern={r"layers\.1\..*": 9, "o_proj": 5, ".*": 7}))
    assert (found.scale(Q), found.scale(OUT)) == (3.5, 2.5)
    found = AdapterFiles.read("mine", write(use_rslora=True))
    assert found.scale(Q) == pytest.approx(6 / 2**0.5)


def test_facts(write: Write) -> None:
    directory = write({"score.weight": (5, 8)}, task_type="SEQ_CLS", modules_to_save=["score"])
    facts = read_adapters({"one": directory, "two": directory})
    assert [*facts.values()] == [AdapterFacts(1, 5, ()), AdapterFacts(2, 5, (), 5)]
    assert read_adapters({"one": write(alora_invocation_tokens=[4, 2])})["one"].invocation == (4, 2)


def test_broken_files_are_named(write: Write) -> None:
    directory = write()
    weights, config = directory / "adapter_model.safetensors", directory / "adapter_config.json"
    good = weights.read_bytes()
    for broken in (b"", good[:20], b"\xff" * 64, (2).to_bytes(8, "little") + b"[]"):
        weights.write_bytes(broken)
        with pytest.raises(
            UnsupportedCheckpoint, match=r"'mine': .* or adapter_model.safetensors cannot be read"
        ):
            AdapterFiles.read("mine", directory)
    weights.rename(directory / "adapter_model.bin")
    with pytest.raises(
        UnsupportedCheckpoint, match=r"no adapter_model.safetensors, which PEFT's save_pretrained"
    ):
        AdapterFiles.read("mine", directory)
    for text in ("{", "[]", "1"):
        config.write_text(text)
        weights.write_bytes(good)
        with pytest.raises(UnsupportedCheckpoint, match=r"adapter_config.json or .* cannot be read"):
            AdapterFiles.read("mine", directory)
    config.unlink()
    with pytest.raises(UnsupportedCheckpoint, match=r"has no adapter_config.json"):
        AdapterFiles.read("mine", directory)
