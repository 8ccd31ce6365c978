"""Convert the default model from its GGUF file (llama.cpp's format) to a Hugging Face style directory.

The file's digest is known, and with it what the file holds. transformers can read GGUF files, too. For this one,
however, it picks another end-of-text token and no padding token, and it does not split digits, so that spaces
before a number get other ids.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from safetensors import SafetensorError
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from hiscore.arrays import Float32

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "attention_bias": False,
    "mlp_bias": False,
    "hidden_act": "silu",
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-05,
    "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0},
    "vocab_size": 49152,
    "tie_word_embeddings": True,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "dtype": "float32",
}
GENERATION_CONFIG = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
TOKENIZER_CONFIG = {
    # This class uses tokenizer.json unchanged. A model's own class would build its own tokenizer.
    "tokenizer_class": "PreTrainedTokenizerFast",
    "model_max_length": 8192,
    "clean_up_tokenization_spaces": False,
    "bos_token": "<|im_start|>",
    "eos_token": "<|im_end|>",
    "unk_token": "<|endoftext|>",
    "pad_token": "<|im_end|>",
}
NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
PERMUTED = {"attn_q": 9, "attn_k": 3}
"""Heads of the projections whose rows llama.cpp stores in another order."""


def convert(gguf: Path, directory: Path) -> None:
    """Write model.safetensors (float32), the configs and the tokenizer.

    The weights are float32 because a Q4_1 weight is scale x 4 bits + minimum, with 11 bits for scale and minimum.
    That does not fit the 8 bits of a bfloat16, and not always the 11 of a float16. Serving in bfloat16 rounds
    once, when the weights are loaded.

    Raises:
        OSError: The directory cannot be written, or its disk is full.
    """
    reader = GGUFReader(gguf)
    metadata = {name: field.contents() for name, field in reader.fields.items()}
    save_weights(dict(map(_weight, reader.tensors)), directory)
    # Not with the tokenizer's own `save`, which hides errors of the operating system.
    (directory / "tokenizer.json").write_text(build_tokenizer(metadata).to_str(pretty=True), "utf-8")
    template = {"chat_template": metadata["tokenizer.chat_template"]}
    _write_json(directory / "tokenizer_config.json", TOKENIZER_CONFIG | template)
    _write_json(directory / "generation_config.json", GENERATION_CONFIG)
    _write_json(directory / "config.json", CONFIG)


def save_weights(weights: dict[str, Float32], directory: Path) -> None:
    """Write model.safetensors; raises OSError."""
    try:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
    except SafetensorError as error:
        # A full disk, for example: the cache explains errors of the operating system.
        raise OSError(str(error)) from error
    # safetensors makes files readable for their owner only, but others may use the cache, too.
    (directory / "model.safetensors").chmod(0o644)


def build_tokenizer(metadata: Mapping[str, Any]) -> Tokenizer:
    """Build tokenizer.json's byte-level BPE from the keys of the file."""
    tokens: list[str] = metadata["tokenizer.ggml.tokens"]
    merges = [tuple(merge.split(" ", 1)) for merge in metadata["tokenizer.ggml.merges"]]
    # As in the published tokenizer, the BPE has no unknown token: a byte outside the vocabulary (a few control
    # characters, unassigned planes of Unicode) gives no token.
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges, unk_token=None))
    digits = pre_tokenizers.Digits(individual_digits=True)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [digits, pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    kinds = zip(tokens, metadata["tokenizer.ggml.token_type"], strict=True)
    special = [token for token, kind in kinds if kind == TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return tokenizer


def _weight(tensor: Any) -> tuple[str, Float32]:
    """Name and values of a tensor as transformers has them."""
    *layer, part = tensor.name.removesuffix(".weight").removeprefix("blk.").split(".")
    values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
    if heads := PERMUTED.get(part):
        # llama.cpp rotates adjacent dimensions and stores them side by side; transformers rotates dimension i with
        # i + head_dim / 2.
        rows, hidden = values.shape
        values = values.reshape(heads, rows // heads // 2, 2, hidden).swapaxes(1, 2).reshape(rows, hidden)
    name = f"model.layers.{layer[0]}.{NAMES[part]}" if layer else NAMES[part]
    return f"{name}.weight", np.ascontiguousarray(values)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", "utf-8")
