"""Loads the weights of a checkpoint with a lightning indexer: strict, fused, and with latent attention absorbed.

Absorbed: instead of expanding latents to keys and values for each head, one small matrix for each head takes its
query to the latents' space, and another takes its result back. So attention works on the latents themselves.
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from hiscore.device.numerics import at_least_float32
from hiscore.layers.scaled_fp8 import ScaledLinear
from hiscore.layers.weights import Experts, Mlp, Projection, Scales
from hiscore.models.config import ExpertShape
from hiscore.models.cut import UNCUT, Cut
from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.deepseek.weights import DsaLayerWeights, DsaWeights, IndexerWeights, MlaWeights
from hiscore.models.expert_loader import read_experts
from hiscore.models.family import ExpertNames
from hiscore.models.loader import embedding_and_head
from hiscore.models.reader import CheckpointReader
from hiscore.models.sharding import columns_of, rows_of
from hiscore.parallel.shard import WHOLE, Shard

log = logging.getLogger(__name__)

EXPERTS = ExpertNames(
    count_key="n_routed_experts", width_key="moe_intermediate_size", normalise="norm_topk_prob"
)


class _Reader(CheckpointReader):
    """Reads projections and experts, in fp8 where the checkpoint stores them so and the model keeps them."""

    def linear(
        self, outs: dict[str, int], inner: int, bias: bool = False, cut: Cut = UNCUT, adds_bias: bool = True
    ) -> Projection:
        return self.projection(outs, inner, bias, cut=cut, adds_bias=adds_bias, fp8=self._keeps_fp8)

    def _kept_in_fp8(
        self, weights: Mapping[str, tuple[int, int]], bias: Tensor | None, order: Tensor | None, cut: Cut
    ) -> Projection | None:
        kept = self.scaled(weights, cut)
        return None if kept is None else ScaledLinear(*kept, bias)

    def experts(
        self, prefix: str, shape: ExpertShape, hidden: int, held: slice
    ) -> tuple[tuple[Tensor, Scales | None], tuple[Tensor, Scales | None]]:
        """Read the weights of the experts that a rank holds, gate and up as one, and their scales in fp8."""
        names = [
            [f"{prefix}.{index}.{part}.weight" for part in EXPERTS.parts] for index in range(shape.count)
        ]
        if self._keeps_fp8 and names[0][0] in self:
            wide, narrow = (shape.width, hidden), (hidden, shape.width)
            gate_up = self._stack([{gate: wide, up: wide} for gate, up, _ in names[held]])
            down = self._stack([{down: narrow} for *_, down in names[held]])
            if gate_up is not None and down is not None:
                others = names[: held.start] + names[held.stop :]
                self.leave(name for of_one in others for name in of_one)
                return gate_up, down
        gate_up_weight, down_weight = read_experts(self, prefix, shape, hidden, EXPERTS, held)
        return (gate_up_weight, None), (down_weight, None)

    def _stack(self, of_each: list[dict[str, tuple[int, int]]]) -> tuple[Tensor, Scales] | None:
        """Read weights of one shape as one: [experts, ...]. Only one of them exists twice at a time."""
        if (first := self.scaled(of_each[0])) is None:
            return None
        values = first[0].new_empty((len(of_each), *first[0].shape))
        of_blocks = first[1].of_blocks.new_empty((len(of_each), *first[1].of_blocks.shape))
        for index, weights in enumerate(of_each):
            if (found := first if index == 0 else self.scaled(weights)) is None:
                return None
            values[index].copy_(found[0])
            of_blocks[index].copy_(found[1].of_blocks)
        return values, replace(first[1], of_blocks=of_blocks)


def load_weights(
    checkpoint: Path,
    a: DsaArchitecture,
    device: torch.device,
    dtype: torch.dtype,
    keeps_fp8: bool = False,
    shard: Shard = WHOLE,
) -> DsaWeights:
    """Load, fuse and absorb a checkpoint's weights, or a rank's share of them.

    With `keeps_fp8`, weights that the checkpoint stores in fp8 stay so, but for those that are absorbed.
    """
    read, vocabulary = _Reader(checkpoint, device, dtype, keeps_fp8), rows_of(shard, a.vocab_size)
    embedding, head = embedding_and_head(read, a.vocab_size, a.hidden_size, a.tied_head, vocabulary)
    layers = tuple(_layer(read, f"model.layers.{index}", a, shard, index, dtype) for index in range(a.layers))
    final_norm = read.tensor("model.norm.weight", a.hidden_size)
    unread = read.unread()
    left_out = [name for name in unread if name.startswith(a.lookahead_prefixes)]
    if left_out and device.type != "meta":
        log.info(
            "%s predicts further tokens: its %d tensors are left out",
            " and ".join(prefix.rstrip(".") for prefix in a.lookahead_prefixes),
            len(left_out),
        )
    read.refuse(sorted(set(unread) - set(left_out)), a.family)
    return DsaWeights(embedding, layers, final_norm, head)


def _layer(
    read: _Reader, prefix: str, a: DsaArchitecture, shard: Shard, index: int, dtype: torch.dtype
) -> DsaLayerWeights:
    mlp, hidden = f"{prefix}.mlp", a.hidden_size
    return DsaLayerWeights(
        input_norm=read.tensor(f"{prefix}.input_layernorm.weight", hidden),
        attention=_attention(read, f"{prefix}.self_attn", a, shard),
        indexer=_indexer(read, f"{prefix}.self_attn.indexer", a, dtype) if a.own_index[index] else None,
        mlp_norm=read.tensor(f"{prefix}.post_attention_layernorm.weight", hidden),
        mlp=_moe(read, mlp, a, shard)
        if a.routed[index]
        else _mlp(read, mlp, hidden, a.intermediate_size, shard),
    )


def _attention(read: _Reader, prefix: str, a: DsaArchitecture, shard: Shard) -> MlaWeights:
    of_head, width = a.nope_dim + a.value_dim, a.heads * a.value_dim
    name = f"{prefix}.kv_b_proj.weight"
    expand = read.tensor(name, a.heads * of_head, a.latent_rank, cut=rows_of(shard, a.heads * of_head))
    keys, values = expand.unflatten(0, (-1, of_head)).split([a.nope_dim, a.value_dim], dim=1)
    down = {f"{prefix}.q_a_proj": a.q_rank, f"{prefix}.kv_a_proj_with_mqa": a.row_dim}
    q_up = {f"{prefix}.q_b_proj": a.heads * (a.nope_dim + a.rope_dim)}
    output = {f"{prefix}.o_proj": a.hidden_size}
    return MlaWeights(
        down=read.linear(down, a.hidden_size, a.attention_bias),
        q_norm=read.tensor(f"{prefix}.q_a_layernorm.weight", a.q_rank),
        latent_norm=read.tensor(f"{prefix}.kv_a_layernorm.weight", a.latent_rank),
        q_up=read.linear(q_up, a.q_rank, cut=rows_of(shard, *q_up.values())),
        # A copy, even of one head alone, whose keys are contiguous: those of the values can then be freed.
        to_latent=keys.clone(memory_format=torch.contiguous_format),
        from_latent=values.transpose(1, 2).contiguous(),
        output=read.linear(output, width, a.attention_bias, columns_of(shard, width), shard.rank == 0),
    )


def _indexer(read: _Reader, prefix: str, a: DsaArchitecture, dtype: torch.dtype) -> IndexerWeights:
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


def _mlp(read: _Reader, prefix: str, hidden: int, width: int, shard: Shard) -> Mlp:
    gate_up = {f"{prefix}.gate_proj": width, f"{prefix}.up_proj": width}
    return Mlp(
        gate_up=read.linear(gate_up, hidden, cut=rows_of(shard, width, width)),
        down=read.linear({f"{prefix}.down_proj": hidden}, width, cut=columns_of(shard, width)),
    )


def _moe(read: _Reader, prefix: str, a: DsaArchitecture, shard: Shard) -> Experts:
    e, hidden, held = a.experts, a.hidden_size, shard.span(a.experts.count)
    (gate_up, gate_up_scales), (down, down_scales) = read.experts(f"{prefix}.experts", e, hidden, held)
    shared = f"{prefix}.shared_experts"
    return Experts(
        routing=e.routing,
        activation=e.activation,
        router=read.tensor(f"{prefix}.gate.weight", e.count, hidden, dtype=torch.float32),
        correction=read.tensor(f"{prefix}.gate.e_score_correction_bias", e.count, dtype=torch.float32),
        gate_up=gate_up,
        down=down,
        shared=_mlp(read, shared, hidden, a.shared_width, shard),
        first=held.start,
        gate_up_scales=gate_up_scales,
        down_scales=down_scales,
    )
