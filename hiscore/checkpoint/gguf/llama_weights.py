"""Turn GGUF tensors into the weights of `transformers.LlamaForCausalLM`."""

import re
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.quants import dequantize

from hiscore.checkpoint.errors import CheckpointError

FloatArray = npt.NDArray[np.float32]

MODEL_TENSORS = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LAYER_TENSORS = {
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
    """Dequantize and rename all tensors, as float32 by their names in transformers.

    `advance` is called with the number of bytes done so far.

    Raises:
        CheckpointError: A tensor is missing or unknown.
    """
    weights: dict[str, FloatArray] = {}
    done = 0
    for tensor in tensors:
        name = transformers_name(tensor.name)
        values = np.asarray(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        if name.endswith("q_proj.weight"):
            values = undo_rotary_permutation(values, config["num_attention_heads"])
        elif name.endswith("k_proj.weight"):
            values = undo_rotary_permutation(values, config["num_key_value_heads"])
        weights[name] = np.ascontiguousarray(values)
        done += values.nbytes
        advance(done)
    model = [
        name for name in MODEL_TENSORS.values() if name != "lm_head" or not config["tie_word_embeddings"]
    ]
    layers = [
        f"model.layers.{i}.{name}"
        for i in range(config["num_hidden_layers"])
        for name in LAYER_TENSORS.values()
    ]
    if different := sorted({f"{name}.weight" for name in (*model, *layers)} ^ set(weights)):
        raise CheckpointError(f"the GGUF file has not the tensors of its metadata, '{different[0]}' for one")
    return weights


def transformers_name(name: str) -> str:
    if match := re.fullmatch(r"(\w+)\.weight", name):
        known = MODEL_TENSORS.get(match[1])
        if known:
            return f"{known}.weight"
    if match := re.fullmatch(r"blk\.(\d+)\.(\w+)\.weight", name):
        known = LAYER_TENSORS.get(match[2])
        if known:
            return f"model.layers.{match[1]}.{known}.weight"
    raise CheckpointError(f"the GGUF file has a tensor '{name}', which this conversion does not know")


def undo_rotary_permutation(weights: FloatArray, heads: int) -> FloatArray:
    """Put the rows of a query or key projection, float32 [heads * head_dim, hidden], back in transformers' order.

    llama.cpp rotates adjacent dimensions and stores them side by side; transformers rotates dimension i with
    i + head_dim / 2.
    """
    rows, hidden = weights.shape
    pairs = weights.reshape(heads, rows // heads // 2, 2, hidden)
    return pairs.swapaxes(1, 2).reshape(rows, hidden)
