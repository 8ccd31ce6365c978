"""Loads weights from safetensors and fuses those that the decoder uses together.

Missing tensors and tensors that nothing reads are both errors: a bias that is silently dropped gives plausible but
wrong scores.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hiscore.layers.rope import rotary_order
from hiscore.layers.weights import LayerWeights, Mlp, Weights
from hiscore.models.config import Architecture
from hiscore.models.cut import UNCUT, Cut
from hiscore.models.expert_loader import load_experts
from hiscore.models.reader import EMBEDDING, HEAD, CheckpointReader
from hiscore.models.sharding import Cuts, of_rank
from hiscore.parallel.shard import WHOLE, Shard
from hiscore.recurrence.gated_delta_net import RecurrentShape, RecurrentWeights


def load_weights(
    checkpoint: Path,
    architecture: Architecture,
    device: torch.device,
    dtype: torch.dtype,
    fp8: bool = False,
    shard: Shard = WHOLE,
) -> Weights:
    """Load and fuse a checkpoint's weights, or a rank's share of them; norms are float32.

    With `fp8`, the layers' projections are in fp8; of a checkpoint that stores some so, those alone.

    Raises:
        UnsupportedCheckpoint: A tensor is missing, left over, or of another shape than the config says.
    """
    a = architecture
    cuts, mine = Cuts.of(a, shard), of_rank(a, shard)
    read = CheckpointReader(checkpoint, device, dtype, architecture.stored_in_fp8)
    if a.labels is None:
        embedding, head = embedding_and_head(read, a.vocab_size, a.hidden_size, a.tied_head, cuts.vocabulary)
    else:
        embedding = read.tensor(EMBEDDING, a.vocab_size, a.hidden_size, cut=cuts.vocabulary)
        head = read.tensor("score.weight", a.labels, a.hidden_size)
    layers = tuple(_load_layer(read, index, a, cuts, mine, fp8) for index in range(a.layers))
    final_norm = _norm(read, "model.norm", a, a.hidden_size) * a.logit_scale
    read.refuse(read.unread(), a.family.name)
    return Weights(embedding, layers, final_norm, head)


def embedding_and_head(
    read: CheckpointReader,
    vocab_size: int,
    hidden_size: int,
    tied: bool,
    cut: Cut = UNCUT,
) -> tuple[Tensor, Tensor]:
    """Read the embedding and the head of a causal LM, [vocabulary, hidden] both, which may be one tensor.

    Tensors are tied as transformers ties them: the checkpoint may hold either or both, and if both are there and
    differ, they are not tied, whatever the config says. Adapters of tied models, merged, leave such checkpoints.
    """
    shape = vocab_size, hidden_size
    both = EMBEDDING in read and HEAD in read
    if not tied or (both and not read.equal(EMBEDDING, HEAD)):
        embedding = read.tensor(EMBEDDING, *shape, cut=cut)
        return embedding, read.tensor(HEAD, *shape, cut=cut)
    shared = read.tensor(HEAD if HEAD in read and not both else EMBEDDING, *shape, cut=cut)
    return shared, shared


def _load_layer(
    read: CheckpointReader, index: int, a: Architecture, cuts: Cuts, mine: Architecture, fp8: bool
) -> LayerWeights:
    """Load a layer of `a`, of which the rank has the sizes `mine`."""
    prefix, norms = f"model.layers.{index}", a.family.norms

    def norm(name: str | None) -> Tensor | None:
        return None if name is None else _norm(read, f"{prefix}.{name}", a, a.hidden_size)

    if a.recurrence is not None and a.recurrent[index]:
        mixer = _load_gated_delta_net(read, f"{prefix}.linear_attn", a.recurrence, a.hidden_size, fp8)
    else:
        mixer = _load_attention(read, f"{prefix}.self_attn", a, cuts, mine, fp8)
    return LayerWeights(
        input_norm=norm(norms.input),
        post_attention_norm=norm(norms.post_attention),
        mlp_norm=norm(norms.mlp),
        mlp=load_experts(read, prefix, a, cuts.experts)
        if a.routed[index]
        else _load_mlp(read, f"{prefix}.mlp", a, cuts, fp8),
        post_mlp_norm=norm(norms.post_mlp),
        **mixer,
    )


def _load_attention(
    read: CheckpointReader, prefix: str, a: Architecture, cuts: Cuts, mine: Architecture, fp8: bool
) -> dict[str, Any]:
    """Load the fields of `LayerWeights` that attention has."""

    def head_norm(name: str, heads: int, of_rank: int, cut: Cut) -> Tensor | None:
        if not a.qk_norm:
            return None
        family, name = a.family, f"{prefix}.{name}"
        wide = family.qk_norm_of_all_heads
        shape = (heads, a.head_dim) if family.qk_norm_by_head else ((heads if wide else 1) * a.head_dim,)
        weight = _norm(read, name, a, *shape, cut=cut)
        order = _order_of_heads(a, of_rank if wide else 1)
        return weight if order is None else weight[..., order.to(weight.device)]

    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    order, gate = _order_of_qkv(mine), None
    if a.family.output_gate:
        of_q, of_gate = torch.arange(2 * q).view(a.heads, 2, a.head_dim).unbind(1)
        rows = torch.cat((of_q.flatten(), torch.arange(2 * q, 2 * q + 2 * kv)))
        order = rows if order is None else rows[order]
        gates = {f"{prefix}.q_proj": 2 * q}
        gate = read.projection(gates, a.hidden_size, a.qkv_bias, of_gate.flatten(), fp8=fp8)
    qkv = _widths(prefix, a.family.qkv_names, (2 * q if a.family.output_gate else q, kv, kv))
    return {
        "qkv": read.projection(qkv, a.hidden_size, a.qkv_bias, order, cuts.qkv, fp8=fp8),
        "q_norm": head_norm("q_norm", a.heads, mine.heads, cuts.q_norm),
        "k_norm": head_norm("k_norm", a.kv_heads, mine.kv_heads, cuts.k_norm),
        "output": read.projection(
            {f"{prefix}.o_proj": a.hidden_size},
            q, a.output_bias, cut=cuts.output, adds_bias=cuts.adds_biases, fp8=fp8,
        ),
        "sinks": read.tensor(f"{prefix}.sinks", a.heads, dtype=torch.float32, cut=cuts.sinks)
        if a.family.sinks
        else None,
        "output_gate": gate,
    }  # fmt: skip


def _load_gated_delta_net(
    read: CheckpointReader, prefix: str, shape: RecurrentShape, hidden_size: int, fp8: bool
) -> dict[str, Any]:
    """Load the fields of `LayerWeights` that a gated delta net has."""
    inputs = {
        f"{prefix}.in_proj_qkv": shape.channels,
        f"{prefix}.in_proj_z": shape.values,
        f"{prefix}.in_proj_b": shape.value_heads,
        f"{prefix}.in_proj_a": shape.value_heads,
    }
    taps = read.tensor(f"{prefix}.conv1d.weight", shape.channels, 1, shape.taps)
    # In float16 the exponential can overflow.
    rates = read.tensor(f"{prefix}.A_log", shape.value_heads, dtype=torch.float32).exp().neg()
    return {
        "qkv": read.projection(inputs, hidden_size, bias=False, fp8=fp8),
        "q_norm": None,
        "k_norm": None,
        "output": read.projection({f"{prefix}.out_proj": hidden_size}, shape.values, bias=False, fp8=fp8),
        "recurrent": RecurrentWeights(
            convolution=taps[:, 0].T.contiguous(),
            rates=rates,
            decay_bias=read.tensor(f"{prefix}.dt_bias", shape.value_heads, dtype=torch.float32),
            norm=read.tensor(f"{prefix}.norm.weight", shape.value_dim, dtype=torch.float32),
        ),
    }


def _load_mlp(read: CheckpointReader, prefix: str, a: Architecture, cuts: Cuts, fp8: bool) -> Mlp:
    inner, down = a.intermediate_size, {f"{prefix}.down_proj": a.hidden_size}
    gate_up = _widths(prefix, a.family.gate_up_names, (inner, inner))
    return Mlp(
        gate_up=read.projection(gate_up, a.hidden_size, a.mlp_bias, cut=cuts.gate_up, fp8=fp8),
        down=read.projection(down, inner, a.mlp_bias, cut=cuts.down, adds_bias=cuts.adds_biases, fp8=fp8),
    )


def _widths(prefix: str, names: Sequence[str], widths: Sequence[int]) -> dict[str, int]:
    """The outputs of layers with these names; one name: the checkpoint holds them as one."""
    if len(names) == 1:
        return {f"{prefix}.{names[0]}": sum(widths)}
    return {f"{prefix}.{name}": width for name, width in zip(names, widths, strict=True)}


def _order_of_heads(a: Architecture, heads: int) -> Tensor | None:
    order = rotary_order(a.head_dim, a.rotated_dim, a.family.interleaved_rope)
    if order is None:
        return None
    return (torch.arange(heads)[:, None] * a.head_dim + order).flatten()


def _order_of_qkv(a: Architecture) -> Tensor | None:
    """`rotary_order` for q and k; v stays as it is."""
    order = _order_of_heads(a, a.heads + a.kv_heads)
    if order is None:
        return None
    return torch.cat((order, len(order) + torch.arange(a.kv_heads * a.head_dim)))


def _norm(read: CheckpointReader, name: str, a: Architecture, *shape: int, cut: Cut = UNCUT) -> Tensor:
    """The weight of a norm, in float32; the one that Gemma leaves out is added."""
    weight = read.tensor(f"{name}.weight", *shape, cut=cut).float()
    return weight + 1 if a.norm_plus_one else weight
