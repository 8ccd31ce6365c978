"""GGUF tensors to the weights of `transformers.LlamaForCausalLM`."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from hiscore.checkpoint.errors import CheckpointError

FloatArray = npt.NDArray[np.float32]

OUTSIDE = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
INSIDE = {
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


def llama_weights(
    tensors: Iterable[Any], config: dict[str, Any], advance: Callable[[int], None]
) -> dict[str, FloatArray]:
    """Dequantise and rename all tensors; ``advance`` is told the bytes done so far.

    tensors: `gguf.ReaderTensor`; config: of `llama_config`.

    Raises:
        CheckpointError: a tensor too many or too few.
    """
    weights: dict[str, FloatArray] = {}
    done = 0
    for tensor in tensors:
        name = llama_name(tensor.name)
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if name.endswith("q_proj.weight"):
            values = undo_rotary_permutation(values, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            values = undo_rotary_permutation(values, config["num_key_value_heads"])
        weights[name] = np.ascontiguousarray(values)
        done += values.nbytes
        advance(done)
    outside = [name for name in OUTSIDE.values() if name != "lm_head" or not config["tie_word_embeddings"]]
    inside = [
        f"model.layers.{i}.{name}" for i in range(config["num_hidden_layers"]) for name in INSIDE.values()
    ]
    if different := sorted({f"{name}.weight" for name in (*outside, *inside)} ^ set(weights)):
        raise CheckpointError(f"the GGUF file has not the tensors of its metadata, '{different[0]}' for one")
    return weights


def llama_name(name: str) -> str:
    """The name of a GGUF tensor in transformers."""
    if match := re.fullmatch(r"(\w+)\.weight", name):
        known = OUTSIDE.get(match[1])
        if known:
            return f"{known}.weight"
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        known = INSIDE.get(match[2])
        if known:
            return f"model.layers.{match[1]}.{known}.weight"
    raise CheckpointError(f"the GGUF file has a tensor '{name}', which this conversion does not know")


def undo_rotary_permutation(weights: FloatArray, heads: int) -> FloatArray:
    """Put the rows of a query or key projection back in transformers' order.

    llama.cpp rotates neighbouring dimensions and stores them side by side; transformers rotates dimension i
    with i + half. weights: float32 [heads x head_dim, hidden]; the same shape comes back.
    """
    rows, hidden = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)
