"""Loads weights from safetensors and fuses those that the decoder uses together.

Missing tensors and tensors that nothing reads are both errors: a bias that is silently dropped gives plausible but
wrong scores.
"""

from pathlib import Path

import torch
from torch import Tensor

from hiscore.layers.weights import LayerWeights, Mlp, Weights
from hiscore.models.config import Architecture, UnsupportedCheckpoint
from hiscore.models.expert_loader import load_experts
from hiscore.models.reader import EMBEDDING, HEAD, CheckpointReader


def load_weights(
    checkpoint: Path,
    architecture: Architecture,
    device: torch.device,
    dtype: torch.dtype,
    fp8: bool = False,
) -> Weights:
    """Load and fuse a checkpoint's weights.

    Args:
        checkpoint: Directory with safetensors.
        architecture: What the config says.
        device: Where the weights are kept.
        dtype: Of the weights; norms are float32.
        fp8: Whether the layers' projections are `Fp8Linear`.

    Raises:
        UnsupportedCheckpoint: A tensor is missing, left over, or of another shape than the config says.
    """
    read, a = CheckpointReader(checkpoint, device, dtype, fp8), architecture
    if a.labels is None:
        embedding, head = embedding_and_head(read, a.vocab_size, a.hidden_size, a.tied_head)
    else:
        embedding = read.tensor(EMBEDDING, a.vocab_size, a.hidden_size)
        head = read.tensor("score.weight", a.labels, a.hidden_size)
    layers = tuple(_load_layer(read, index, a) for index in range(a.layers))
    final_norm = _norm(read, "model.norm", a, a.hidden_size)
    if left_over := read.unread():
        raise UnsupportedCheckpoint(
            f"the checkpoint holds {len(left_over)} tensors that a {a.family} model does not have, "
            f"'{left_over[0]}' for one"
        )
    return Weights(embedding, layers, final_norm, head)


def embedding_and_head(
    read: CheckpointReader, vocab_size: int, hidden_size: int, tied: bool
) -> tuple[Tensor, Tensor]:
    """Read the embedding and the head of a causal LM, which may be one tensor.

    As transformers ties them: the checkpoint may hold either or both, and if both are there and differ, they are
    not tied, whatever the config says. Adapters of tied models, merged, leave such checkpoints.

    Args:
        read: Reader of the checkpoint.
        vocab_size: Rows of both.
        hidden_size: Columns of both.
        tied: Whether the config ties them.

    Returns:
        Both, [vocabulary, hidden].
    """
    shape = vocab_size, hidden_size
    both = EMBEDDING in read and HEAD in read
    if not tied or (both and not read.equal(EMBEDDING, HEAD)):
        return read.tensor(EMBEDDING, *shape), read.tensor(HEAD, *shape)
    shared = read.tensor(HEAD if HEAD in read and not both else EMBEDDING, *shape)
    return shared, shared


def _load_layer(read: CheckpointReader, index: int, a: Architecture) -> LayerWeights:
    prefix = f"model.layers.{index}"

    def norm(name: str, size: int = a.hidden_size) -> Tensor:
        return _norm(read, f"{prefix}.{name}", a, size)

    attention = f"{prefix}.self_attn"
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    qkv = {f"{attention}.q_proj": q, f"{attention}.k_proj": kv, f"{attention}.v_proj": kv}
    return LayerWeights(
        input_norm=norm("input_layernorm"),
        qkv=read.projection(qkv, a.hidden_size, bias=a.qkv_bias),
        q_norm=norm("self_attn.q_norm", a.head_dim) if a.qk_norm else None,
        k_norm=norm("self_attn.k_norm", a.head_dim) if a.qk_norm else None,
        output=read.projection({f"{attention}.o_proj": a.hidden_size}, q, bias=a.output_bias),
        post_attention_norm=norm("post_attention_layernorm") if a.sandwich_norms else None,
        mlp_norm=norm("pre_feedforward_layernorm" if a.sandwich_norms else "post_attention_layernorm"),
        mlp=load_experts(read, prefix, a) if a.routed[index] else _load_mlp(read, f"{prefix}.mlp", a),
        post_mlp_norm=norm("post_feedforward_layernorm") if a.sandwich_norms else None,
    )


def _load_mlp(read: CheckpointReader, prefix: str, a: Architecture) -> Mlp:
    gate_up = {f"{prefix}.gate_proj": a.intermediate_size, f"{prefix}.up_proj": a.intermediate_size}
    return Mlp(
        gate_up=read.projection(gate_up, a.hidden_size, bias=a.mlp_bias),
        down=read.projection({f"{prefix}.down_proj": a.hidden_size}, a.intermediate_size, bias=a.mlp_bias),
    )


def _norm(read: CheckpointReader, name: str, a: Architecture, size: int) -> Tensor:
    """The weight of an RMSNorm, in float32; the one that Gemma leaves out is added."""
    weight = read.tensor(f"{name}.weight", size).float()
    return weight + 1 if a.norm_plus_one else weight
