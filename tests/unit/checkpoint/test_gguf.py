"""The conversion on small GGUF files of known weights: every field, every tensor, and what is refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from hiscore.checkpoint import CheckpointError
from hiscore.checkpoint.gguf import llama_weights as conversion
from hiscore.checkpoint.gguf.convert import convert

SIZES: dict[str, Any] = {
    "vocab_size": 12,
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 123,
    "rms_norm_eps": 3e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
TOKENS = ["<pad>", "<bos>", "<eos>", "<user>", "a", "b", "ab", "Ġ", "1", "2", "Ġab", "ĠĠ"]
TYPES = [gguf.TokenType.CONTROL] * 3 + [gguf.TokenType.USER_DEFINED] + [gguf.TokenType.NORMAL] * 8
MERGES = ["a b", "Ġ ab", "Ġ Ġ"]
IDS = torch.tensor([[1, 4, 5, 6, 7, 8, 9, 10, 11, 3, 2, 4]])


def random_llama(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=tied)).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)  # norms too, or a dropped one would not show
    return model


def permuted(weights: torch.Tensor, heads: int) -> torch.Tensor:
    """As llama.cpp stores queries and keys: dimensions i and i + half side by side, head by head."""
    head_dim = len(weights) // heads
    halves = range(0, head_dim, head_dim // 2)
    return weights[
        [h * head_dim + half + i for h in range(heads) for i in range(head_dim // 2) for half in halves]
    ]


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    change: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    **given: Any,
) -> Path:
    """A GGUF file of the model; ``given`` replaces what `gguf.GGUFWriter` is told by default."""
    writer = gguf.GGUFWriter(path, given.get("architecture", "llama"))
    writer.add_block_count(SIZES["num_hidden_layers"])
    writer.add_context_length(SIZES["max_position_embeddings"])
    writer.add_embedding_length(SIZES["hidden_size"])
    writer.add_feed_forward_length(SIZES["intermediate_size"])
    writer.add_head_count(SIZES["num_attention_heads"])
    writer.add_head_count_kv(SIZES["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(SIZES["rms_norm_eps"])
    writer.add_rope_freq_base(SIZES["rope_parameters"]["rope_theta"])
    writer.add_rope_dimension_count(given.get("rotated", SIZES["head_dim"]))
    writer.add_tokenizer_model(given.get("tokenizer", "gpt2"))
    writer.add_tokenizer_pre(given.get("pre", "smollm"))
    writer.add_token_list(given.get("tokens", TOKENS))
    writer.add_token_types(given.get("types", TYPES))
    writer.add_token_merges(MERGES)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    change(writer)
    names = {f"{theirs}.weight": f"{ours}.weight" for ours, theirs in conversion.MODEL_TENSORS.items()}
    for i in range(SIZES["num_hidden_layers"]):
        for ours, theirs in conversion.LAYER_TENSORS.items():
            names[f"model.layers.{i}.{theirs}.weight"] = f"blk.{i}.{ours}.weight"
    for name, parameter in model.named_parameters():
        values = parameter.detach()
        if "q_proj" in name:
            values = permuted(values, SIZES["num_attention_heads"])
        if "k_proj" in name:
            values = permuted(values, SIZES["num_key_value_heads"])
        if names[name] != given.get("without"):
            writer.add_tensor(names[name], values.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def converted(path: Path) -> Path:
    directory = path.parent / "checkpoint"
    directory.mkdir(exist_ok=True)
    convert(path, directory, progress=False)
    return directory


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(IDS).logits


@pytest.mark.parametrize("tied", [True, False])
def test_weights_and_config_come_back(tied: bool, tmp_path: Path) -> None:
    truth = random_llama(tied)
    model = AutoModelForCausalLM.from_pretrained(converted(write_gguf(tmp_path / "m.gguf", truth)))
    ours, theirs = model.config.to_dict(), truth.config.to_dict()
    for name in (*SIZES, "tie_word_embeddings", "attention_bias", "mlp_bias", "hidden_act"):
        assert ours[name] == theirs[name], name
    assert model.dtype == torch.float32
    assert model.generation_config.eos_token_id == 2
    # Not one bit of the weights may differ. Logits may, by float32's rounding: a CPU's library may add up in
    # another order where memory is aligned otherwise.
    expected = truth.state_dict()
    found = model.state_dict()
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    torch.testing.assert_close(logits(model), logits(truth), atol=1e-5, rtol=0)


def test_control_rows_left_as_llama_cpp_has_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "undo_rotary_permutation", lambda weights, heads: weights)
    truth = random_llama(tied=True)
    model = AutoModelForCausalLM.from_pretrained(converted(write_gguf(tmp_path / "m.gguf", truth)))
    assert (logits(model) - logits(truth)).abs().max() > 0.1


def test_tokenizer(tmp_path: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(converted(write_gguf(tmp_path / "m.gguf", random_llama(True))))
    assert tokenizer("ab ab<eos>b  12<user>").input_ids == [6, 10, 2, 5, 11, 8, 9, 3]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (1, 2, 0)
    assert tokenizer.decode([6, 10, 2, 3], skip_special_tokens=True) == "ab ab<user>"
    assert tokenizer.model_max_length == 123
    assert tokenizer.chat_template is None


def test_first_and_last_token_are_added_where_the_file_says_so(tmp_path: Path) -> None:
    def change(writer: gguf.GGUFWriter) -> None:
        writer.add_add_bos_token(True)
        writer.add_add_eos_token(True)
        writer.add_chat_template("{{ messages }}")

    path = write_gguf(tmp_path / "m.gguf", random_llama(True), change)
    tokenizer = AutoTokenizer.from_pretrained(converted(path))
    assert tokenizer("ab").input_ids == [1, 6, 2]
    assert tokenizer("ab", add_special_tokens=False).input_ids == [6]
    assert tokenizer.chat_template == "{{ messages }}"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"architecture": "gemma"}, "architecture 'gemma'"),
        ({"pre": "llama-bpe"}, "rule 'llama-bpe'"),
        ({"tokenizer": "llama"}, "kind 'llama'"),
        ({"rotated": 4}, "rotates 4 dimensions"),
        ({"tokens": TOKENS[:-1], "types": TYPES[:-1]}, "another number of embeddings"),
        ({"without": "blk.1.attn_norm.weight"}, r"'model\.layers\.1\.input_layernorm\.weight'"),
        ({"change": lambda file: file.add_rope_scaling_factor(2.0)}, r"sets 'llama\.rope\.scaling\.factor'"),
        (
            {"change": lambda file: file.add_tensor("rope_freqs", np.ones(4, np.float32))},
            "tensor 'rope_freqs'",
        ),
    ],
)
def test_what_is_not_known_is_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        converted(write_gguf(tmp_path / "m.gguf", random_llama(True), **given))
