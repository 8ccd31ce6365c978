"""Loads the weights of a checkpoint with a lightning indexer: strict, fused, and with latent attention absorbed.

Absorbed: instead of expanding latents to keys and values for each head, one small matrix for each head takes its
query to the latents' space, and another takes its result back. So attention works on the latents themselves.
"""

import logging
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from hiscore.layers.weights import Experts, Linear, Mlp
from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.expert_loader import read_experts
from hiscore.models.family import ExpertNames
from hiscore.models.loader import embedding_and_head
from hiscore.models.reader import CheckpointReader
from hiscore.numerics import at_least_float32

log = logging.getLogger(__name__)

EXPERTS = ExpertNames(
    count_key="n_routed_experts", width_key="moe_intermediate_size", normalise="norm_topk_prob"
)


@dataclass(frozen=True)
class MlaWeights:
    """Latent attention of a layer."""

    down: Linear
    """[q_rank + latent_rank + rope_dim, hidden]: to the low-rank query, the latent, the shared rotary key."""
    q_norm: Tensor
    """[q_rank]"""
    latent_norm: Tensor
    """[latent_rank]"""
    q_up: Linear
    """[heads (nope_dim + rope_dim), q_rank]"""
    to_latent: Tensor
    """[heads, nope_dim, latent_rank]: takes a head's query to the latents' space."""
    from_latent: Tensor
    """[heads, latent_rank, value_dim]: takes attended latents to a head's values."""
    output: Linear
    """[hidden, heads value_dim]"""


@dataclass(frozen=True)
class IndexerWeights:
    """The lightning indexer of a layer."""

    query: Linear
    """[index heads index dim, q_rank]"""
    key: Linear
    """[index dim, hidden]"""
    key_norm: Tensor
    """[index dim]"""
    key_norm_bias: Tensor
    """[index dim]"""
    head_weights: Tensor
    """[index heads, hidden], in float32 at least, because rounded scores would tie."""


@dataclass(frozen=True)
class DsaLayerWeights:
    """One layer."""

    input_norm: Tensor
    """[hidden]"""
    attention: MlaWeights
    indexer: IndexerWeights | None
    """None where the layer uses the selection of an earlier one."""
    mlp_norm: Tensor
    """[hidden]"""
    mlp: Mlp | Experts


@dataclass(frozen=True)
class DsaWeights:
    """A whole checkpoint on one device."""

    embedding: Tensor
    """[vocabulary, hidden]"""
    layers: tuple[DsaLayerWeights, ...]
    final_norm: Tensor
    """[hidden]"""
    head: Tensor
    """[vocabulary, hidden]"""


class _Shaped:
    """Reads tensors and checks their shapes."""

    def __init__(self, read: CheckpointReader) -> None:
        self.read = read

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        return self.read.tensor(name, *shape, dtype=dtype)

    def linear(self, outs: dict[str, int], inner: int, bias: bool = False) -> Linear:
        """Read projections of the same input as one.

        Args:
            outs: Name and width of each projection, in order.
            inner: Width of the input.
            bias: Whether they have biases.
        """
        weight = torch.cat([self.tensor(f"{name}.weight", out, inner) for name, out in outs.items()])
        if not bias:
            return Linear(weight)
        return Linear(weight, torch.cat([self.tensor(f"{name}.bias", out) for name, out in outs.items()]))


def load_weights(
    checkpoint: Path, a: DsaArchitecture, device: torch.device, dtype: torch.dtype
) -> DsaWeights:
    """Load, fuse and absorb a checkpoint's weights.

    Args:
        checkpoint: Directory with safetensors.
        a: What the config says.
        device: Where the weights are kept.
        dtype: Of the weights.

    Raises:
        UnsupportedCheckpoint: A tensor is missing, left over, or of another shape than the config says.
    """
    reader = CheckpointReader(checkpoint, device, dtype, fp8=False)
    read = _Shaped(reader)
    embedding, head = embedding_and_head(reader, a.vocab_size, a.hidden_size, a.tied_head)
    layers = tuple(_layer(read, f"model.layers.{index}", a, index, dtype) for index in range(a.layers))
    final_norm = read.tensor("model.norm.weight", a.hidden_size)
    unread = reader.unread()
    left_out = [name for name in unread if name.startswith(a.lookahead_prefixes)]
    if left_out:
        log.info(
            "%s predicts further tokens: its %d tensors are left out",
            " and ".join(prefix.rstrip(".") for prefix in a.lookahead_prefixes),
            len(left_out),
        )
    if left_over := sorted(set(unread) - set(left_out)):
        raise UnsupportedCheckpoint(
            f"the checkpoint holds {len(left_over)} tensors that a {a.family} model does not have, "
            f"'{left_over[0]}' for one"
        )
    return DsaWeights(embedding, layers, final_norm, head)


def _layer(read: _Shaped, prefix: str, a: DsaArchitecture, index: int, dtype: torch.dtype) -> DsaLayerWeights:
    mlp = f"{prefix}.mlp"
    return DsaLayerWeights(
        input_norm=read.tensor(f"{prefix}.input_layernorm.weight", a.hidden_size),
        attention=_attention(read, f"{prefix}.self_attn", a),
        indexer=_indexer(read, f"{prefix}.self_attn.indexer", a, dtype) if a.own_index[index] else None,
        mlp_norm=read.tensor(f"{prefix}.post_attention_layernorm.weight", a.hidden_size),
        mlp=_moe(read, mlp, a) if a.routed[index] else _mlp(read, mlp, a.hidden_size, a.intermediate_size),
    )


def _attention(read: _Shaped, prefix: str, a: DsaArchitecture) -> MlaWeights:
    expand = read.tensor(f"{prefix}.kv_b_proj.weight", a.heads * (a.nope_dim + a.value_dim), a.latent_rank)
    keys, values = expand.unflatten(0, (a.heads, -1)).split([a.nope_dim, a.value_dim], dim=1)
    down = {f"{prefix}.q_a_proj": a.q_rank, f"{prefix}.kv_a_proj_with_mqa": a.row_dim}
    return MlaWeights(
        down=read.linear(down, a.hidden_size, a.attention_bias),
        q_norm=read.tensor(f"{prefix}.q_a_layernorm.weight", a.q_rank),
        latent_norm=read.tensor(f"{prefix}.kv_a_layernorm.weight", a.latent_rank),
        q_up=read.linear({f"{prefix}.q_b_proj": a.heads * (a.nope_dim + a.rope_dim)}, a.q_rank),
        to_latent=keys.contiguous(),
        from_latent=values.transpose(1, 2).contiguous(),
        output=read.linear({f"{prefix}.o_proj": a.hidden_size}, a.heads * a.value_dim, a.attention_bias),
    )


def _indexer(read: _Shaped, prefix: str, a: DsaArchitecture, dtype: torch.dtype) -> IndexerWeights:
    heads, dim = a.indexer.heads, a.indexer.head_dim
    return IndexerWeights(
        query=read.linear({f"{prefix}.wq_b": heads * dim}, a.q_rank),
        key=read.linear({f"{prefix}.wk": dim}, a.hidden_size),
        key_norm=read.tensor(f"{prefix}.k_norm.weight", dim),
        key_norm_bias=read.tensor(f"{prefix}.k_norm.bias", dim),
        head_weights=read.tensor(
            f"{prefix}.weights_proj.weight", heads, a.hidden_size, dtype=at_least_float32(dtype)
        ),
    )


def _mlp(read: _Shaped, prefix: str, hidden: int, width: int) -> Mlp:
    return Mlp(
        gate_up=read.linear({f"{prefix}.gate_proj": width, f"{prefix}.up_proj": width}, hidden),
        down=read.linear({f"{prefix}.down_proj": hidden}, width),
    )


def _moe(read: _Shaped, prefix: str, a: DsaArchitecture) -> Experts:
    e, hidden = a.experts, a.hidden_size
    gate_up, down = read_experts(read.read, f"{prefix}.experts", e, hidden, EXPERTS)
    return Experts(
        routing=e.routing,
        activation=e.activation,
        router=read.tensor(f"{prefix}.gate.weight", e.count, hidden, dtype=torch.float32),
        router_bias=None,
        correction=read.tensor(f"{prefix}.gate.e_score_correction_bias", e.count, dtype=torch.float32),
        gate_up=gate_up,
        gate_up_bias=None,
        down=down,
        down_bias=None,
        shared=_mlp(read, f"{prefix}.shared_experts", hidden, a.shared_width),
    )
