"""Build a Llama config.json from GGUF metadata."""

from typing import Any

import numpy as np

from hiscore.checkpoint.errors import CheckpointError

# The architecture's keys that are read below. Any other key would change the computation: scaled rotary positions,
# experts, sliding windows ...
KNOWN = {
    "llama.attention.head_count",
    "llama.attention.head_count_kv",
    "llama.attention.layer_norm_rms_epsilon",
    "llama.block_count",
    "llama.context_length",
    "llama.embedding_length",
    "llama.feed_forward_length",
    "llama.rope.dimension_count",
    "llama.rope.freq_base",
    "llama.vocab_size",
}


class Metadata(dict[str, Any]):
    """A GGUF file's key-value pairs as Python values; a missing key is a `CheckpointError`."""

    def __missing__(self, key: str) -> Any:
        raise CheckpointError(f"the GGUF file has no '{key}'")


def llama_config(metadata: Metadata, *, tied: bool) -> dict[str, Any]:
    """Make config.json for `transformers.LlamaForCausalLM`; with `tied` the head is the embedding matrix.

    Raises:
        CheckpointError: Another architecture, or an unknown variant of it.
    """
    architecture = metadata["general.architecture"]
    if architecture != "llama":
        raise CheckpointError(f"the GGUF file holds the architecture '{architecture}', not 'llama'")
    if unknown := sorted(key for key in metadata if key.startswith("llama.") and key not in KNOWN):
        raise CheckpointError(f"the GGUF file sets '{unknown[0]}', which this conversion does not know")
    hidden, heads = metadata["llama.embedding_length"], metadata["llama.attention.head_count"]
    head_dim = metadata["llama.rope.dimension_count"]
    if heads * head_dim != hidden:
        raise CheckpointError(
            f"the GGUF file rotates {head_dim} dimensions of each of {heads} heads, {hidden} in all: a "
            "partial rotation is not known to this conversion"
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": metadata["llama.feed_forward_length"],
        "num_hidden_layers": metadata["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": metadata.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": metadata["llama.context_length"],
        "rms_norm_eps": _decimal(metadata["llama.attention.layer_norm_rms_epsilon"]),
        "rope_parameters": {"rope_type": "default", "rope_theta": _decimal(metadata["llama.rope.freq_base"])},
        "vocab_size": len(metadata["tokenizer.ggml.tokens"]),
        "tie_word_embeddings": tied,
        "bos_token_id": metadata["tokenizer.ggml.bos_token_id"],
        "eos_token_id": metadata["tokenizer.ggml.eos_token_id"],
        "pad_token_id": metadata.get("tokenizer.ggml.padding_token_id"),
        "dtype": "float32",
    }


def generation_config(config: dict[str, Any]) -> dict[str, Any]:
    """The content of generation_config.json: the begin, end and padding tokens."""
    return {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}


def _decimal(value: float) -> float:
    # The file stores 1e-05 as a float32, whose shortest decimal is what the authors wrote.
    return float(str(np.float32(value)))
