"""Loads weights from safetensors and fuses those that the decoder uses together.

Missing tensors and tensors that nothing reads are both errors: a bias that is silently dropped gives plausible but
wrong scores.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hiscore.layers.rope import rotary_order
from hiscore.layers.weights import LayerWeights, Mlp, Weights
from hiscore.models.config import Architecture
from hiscore.models.cut import UNCUT, Cut
from hiscore.models.expert_loader import load_experts
from hiscore.models.gemma4 import load_gemma4_layer, load_own_inputs
from hiscore.models.reader import EMBEDDING, HEAD, CheckpointReader, widths_of
from hiscore.models.sharding import columns_of, heads_of, of_rank, rows_of
from hiscore.parallel.shard import WHOLE, Shard
from hiscore.recurrence.gated_delta_net import RecurrentShape, RecurrentWeights

UNSHARED = ("k_proj", "v_proj", "k_norm", "v_norm")
"""Parts of attention that a layer does not have that reads another's keys and values."""


def load_weights(
    checkpoint: Path,
    architecture: Architecture,
    device: torch.device,
    dtype: torch.dtype,
    fp8: bool = False,
    shard: Shard = WHOLE,
    reader: Callable[..., CheckpointReader] = CheckpointReader,
) -> Weights:
    """Load and fuse a checkpoint's weights, or a rank's share of them; norms are float32.

    With `fp8`, the layers' projections are in fp8; of a checkpoint that stores some so, those alone.
    """
    a = architecture
    mine, vocabulary = of_rank(a, shard), rows_of(shard, a.vocab_size)
    # Models without a head are saved without this beginning of names.
    read = reader(checkpoint, device, dtype, a.stored_in_fp8, "model." if a.modular else "")
    of_classifier: dict[str, Any] = {}
    if a.labels is None:
        embedding, head = embedding_and_head(read, a.vocab_size, a.hidden_size, a.tied_head, vocabulary)
    else:
        embedding = read.tensor(EMBEDDING, a.vocab_size, a.hidden_size, cut=vocabulary)
        head, of_classifier = _load_classifier(read, a, a.labels)
    layers = tuple(
        _load_layer(read, index, a.of_layer(index), shard, mine.of_layer(index), fp8)
        for index in range(a.layers)
    )
    own = load_own_inputs(read, a) if a.own_input else None
    final_norm = _norm(read, "model.norm", a, a.hidden_size) * a.logit_scale
    read.refuse(read.unread(), a.family.name)
    return Weights(embedding, layers, final_norm, head, own_inputs=own, **of_classifier)


def _load_classifier(read: CheckpointReader, a: Architecture, labels: int) -> tuple[Tensor, dict[str, Any]]:
    """Load a classifier's last product, [labels, inner], and the fields of `Weights` with the rest of its head."""
    if a.guard_labels:
        # Both heads as one: a product with zeros adds nothing.
        parts = ("", "query_")
        pre = dict.fromkeys((f"{part}risk_level_category_pre" for part in parts), a.guard_width)
        norms = [f"{part}risk_level_category_layernorm.weight" for part in parts]
        names = [f"{part}{kind}_head.weight" for part in parts for kind in ("risk_level", "category")]
        heads = [
            read.tensor(name, count, a.guard_width) for name, count in zip(names, a.guard_labels, strict=True)
        ]
        return torch.block_diag(torch.cat(heads[:2]), torch.cat(heads[2:])), {
            "head_input": read.projection(pre, a.hidden_size, bias=False),
            "head_norm": torch.stack(
                [read.tensor(name, a.guard_width, dtype=torch.float32) for name in norms]
            ),
        }
    if a.modular:
        return torch.eye(labels, device=read.device), {}
    projects = a.deep_head and "projector.0.weight" in read
    head, inner = ("projector", a.hidden_size // 2) if projects else ("score", a.hidden_size)
    name, biased = f"{head}.2" if a.deep_head else head, a.head_bias or (a.deep_head and not projects)
    found: dict[str, Any] = {}
    if biased:
        found["head_bias"] = read.tensor(f"{name}.bias", labels, dtype=torch.float32)
    if a.deep_head:
        found["head_input"] = read.projection({f"{head}.0": inner}, a.hidden_size, biased)
    return read.tensor(f"{name}.weight", labels, inner), found


def embedding_and_head(
    read: CheckpointReader, vocab_size: int, hidden_size: int, tied: bool, cut: Cut = UNCUT
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
    read: CheckpointReader, index: int, a: Architecture, shard: Shard, mine: Architecture, fp8: bool
) -> LayerWeights:
    """Load a layer of `a`, of which the rank has the sizes `mine`."""
    prefix, norms = f"model.layers.{index}", a.family.norms

    def norm(name: str | None) -> Tensor | None:
        return None if name is None else _norm(read, f"{prefix}.{name}", a, a.hidden_size)

    if a.recurrence is not None and a.recurrent[index] and a.recurrence.convolved:
        mixer = _load_convolution(read, f"{prefix}.conv", a.recurrence)
    elif a.recurrence is not None and a.recurrent[index]:
        mixer = _load_gated_delta_net(read, f"{prefix}.linear_attn", a.recurrence, a.hidden_size, fp8)
    else:
        mixer = _load_attention(read, index, a, shard, mine, fp8)
    return LayerWeights(
        input_norm=norm(norms.input),
        post_attention_norm=norm(norms.post_attention),
        mlp_norm=norm(norms.mlp),
        mlp=load_experts(read, prefix, a, shard)
        if a.routed[index]
        else _load_mlp(read, f"{prefix}.mlp", a, shard, fp8),
        post_mlp_norm=norm(norms.post_mlp),
        gemma4=load_gemma4_layer(read, index, a) if a.family.sizes_by_layer else None,
        **mixer,
    )


def _load_attention(
    read: CheckpointReader, index: int, a: Architecture, shard: Shard, mine: Architecture, fp8: bool
) -> dict[str, Any]:
    """Load the fields of `LayerWeights` that attention has."""
    prefix, shares_keys = f"model.layers.{index}.self_attn", a.kv_sources[index] != index

    family, wide = a.family, a.family.qk_norm_of_all_heads
    q_heads, k_heads, _ = heads_of(shard, a.heads, a.kv_heads, a.head_dim if wide else 1)

    def head_norm(name: str, heads: int, of_rank: int, heads_of_rank: Cut) -> Tensor | None:
        if not a.qk_norm:
            return None
        cut, name = heads_of_rank if wide or family.qk_norm_by_head else UNCUT, f"{prefix}.{name}"
        shape = (heads, a.head_dim) if family.qk_norm_by_head else ((heads if wide else 1) * a.head_dim,)
        weight = _norm(read, name, a, *shape, cut=cut)
        order = _order_of_heads(a, of_rank if wide else 1)
        return weight if order is None else weight[..., order.to(weight.device)]

    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    *_, all_heads = heads_of(shard, a.heads, a.kv_heads, a.head_dim)
    order, gate = _order_of_qkv(mine), None
    if a.family.output_gate:
        of_q, of_gate = torch.arange(2 * q).view(a.heads, 2, a.head_dim).unbind(1)
        rows = torch.cat((of_q.flatten(), torch.arange(2 * q, 2 * q + 2 * kv)))
        order = rows if order is None else rows[order]
        gates = {f"{prefix}.q_proj": 2 * q}
        gate = read.projection(gates, a.hidden_size, a.qkv_bias, of_gate.flatten(), fp8=fp8)
    names, widths = a.family.qkv_names, [2 * q if a.family.output_gate else q, kv, kv]
    if shares_keys:
        names, widths = names[:1], widths[:1]
        # Published files hold some, which transformers does not read either.
        parts = (f"{prefix}.{name}.{part}" for name in UNSHARED for part in ("weight", "bias"))
        read.leave(name for name in parts if name in read)
    elif a.keys_as_values[index]:
        names, widths = names[:2], widths[:2]
    qkv = widths_of(prefix, names, widths)
    return {
        "qkv": read.projection(qkv, a.hidden_size, a.qkv_bias, order, all_heads, fp8=fp8),
        "q_norm": head_norm("q_norm", a.heads, mine.heads, q_heads),
        "k_norm": None if shares_keys else head_norm("k_norm", a.kv_heads, mine.kv_heads, k_heads),
        "output": read.projection(
            {f"{prefix}.o_proj": a.hidden_size},
            q, a.output_bias, cut=columns_of(shard, q), adds_bias=shard.rank == 0, fp8=fp8,
        ),
        "sinks": read.tensor(f"{prefix}.sinks", a.heads, dtype=torch.float32, cut=rows_of(shard, a.heads))
        if a.family.sinks
        else None,
        "output_gate": gate,
    }  # fmt: skip


def _load_gated_delta_net(
    read: CheckpointReader, prefix: str, shape: RecurrentShape, hidden_size: int, fp8: bool
) -> dict[str, Any]:
    """Load the fields of `LayerWeights` that a gated delta net has."""
    order = None
    if f"{prefix}.in_proj_qkvz.weight" in read:
        inputs = {
            f"{prefix}.in_proj_qkvz": shape.channels + shape.values,
            f"{prefix}.in_proj_ba": 2 * shape.value_heads,
        }
        order = _order_by_kind(shape)
    else:
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
        "qkv": read.projection(inputs, hidden_size, bias=False, order=order, fp8=fp8),
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


def _load_convolution(read: CheckpointReader, prefix: str, shape: RecurrentShape) -> dict[str, Any]:
    """Load the fields of `LayerWeights` that a layer has which is a gated convolution."""
    taps, nothing = read.tensor(f"{prefix}.conv.weight", shape.channels, 1, shape.taps), torch.empty(0)
    return {
        "qkv": read.projection({f"{prefix}.in_proj": shape.inputs}, shape.channels, bias=False),
        "q_norm": None,
        "k_norm": None,
        "output": read.projection({f"{prefix}.out_proj": shape.channels}, shape.values, bias=False),
        "recurrent": RecurrentWeights(taps[:, 0].T.contiguous(), nothing, nothing, nothing),
    }


def _order_by_kind(shape: RecurrentShape) -> Tensor:
    """Order of all inputs, stored for one key head after another, that puts those of a kind together."""
    of_values = shape.value_heads // shape.key_heads
    wide = of_values * shape.value_dim
    parts: list[Tensor] = []
    begin = 0
    for widths in ((shape.key_dim, shape.key_dim, wide, wide), (of_values, of_values)):
        rows = torch.arange(shape.key_heads * sum(widths)).view(shape.key_heads, -1) + begin
        parts += [part.flatten() for part in rows.split(widths, dim=1)]
        begin += rows.numel()
    return torch.cat(parts)


def _load_mlp(read: CheckpointReader, prefix: str, a: Architecture, shard: Shard, fp8: bool) -> Mlp:
    inner, down = a.intermediate_size, {f"{prefix}.down_proj": a.hidden_size}
    gate_up = widths_of(prefix, a.family.gate_up_names, (inner, inner))
    return Mlp(
        gate_up=read.projection(
            gate_up, a.hidden_size, a.mlp_bias, cut=rows_of(shard, inner, inner), fp8=fp8
        ),
        down=read.projection(
            down, inner, a.mlp_bias, cut=columns_of(shard, inner), adds_bias=shard.rank == 0, fp8=fp8
        ),
    )


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
