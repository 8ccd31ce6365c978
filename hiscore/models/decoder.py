"""The decoder over packed rows: one loop over layers for every family, device, prefill and decode step."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import relu, rms_norm

from hiscore.attention.base import Attention, AttentionShape
from hiscore.layers.lm_head import ROWS_AT_ONCE, LMHead
from hiscore.layers.ops import Ops
from hiscore.layers.parallel_ops import ParallelOps, WideNorms
from hiscore.layers.rope import Rope
from hiscore.layers.weights import LayerWeights, Mlp, Projection, Weights
from hiscore.models.adapter_files import AdapterFiles
from hiscore.models.adapter_weights import load_adapters
from hiscore.models.config import Architecture, read_architecture
from hiscore.models.cross_encoder import read_cross_encoder
from hiscore.models.gemma4 import finish_layer, own_inputs
from hiscore.models.loader import load_weights
from hiscore.models.modular_head import ModularHead
from hiscore.models.rotary import make_rope
from hiscore.models.sharding import of_rank
from hiscore.parallel.group import Group
from hiscore.parallel.shard import WHOLE, Shard
from hiscore.recurrence.gated_delta_net import Recurrence
from hiscore.recurrence.state_pool import StatePool
from hiscore.server.progress import Advance, no_progress
from hiscore.server.shared_weights import SharedWeights


@dataclass(frozen=True)
class ModelInputs:
    input_ids: Tensor  # int32 [T], with numbers of adapters (`Forward.input_ids`)
    positions: Tensor  # int32 [T]
    slot_mapping: Sequence[Tensor]
    """int32 [T] for each layer: the pool slot of each row's key and value, -1 for none."""
    angles: Tensor | None = None
    """int32 [T]: where in the rotary tables each row's angles are; None: at its position."""


class Decoder:
    """Weights, rotary tables and the loop over layers. Operations, attention and the KV pool are passed in."""

    def __init__(
        self,
        checkpoint: Path,
        device: torch.device,
        dtype: torch.dtype,
        fp8: bool = False,
        max_context: int | None = None,
        shared: SharedWeights | None = None,
        group: Group | None = None,
        adapters: Sequence[AdapterFiles] = (),
    ) -> None:
        """Load a checkpoint, or a rank's share of it; adapters are for one rank alone.

        Args:
            fp8: The layers' projections and their inputs are in fp8.
            max_context: Tokens of the longest sequence; None: see `context_limit`.
            shared: Weights of the server's models; None: this one has its own.
            group: The ranks that compute together; None: this process is the only one.
        """
        self._whole, config = read_architecture(checkpoint, max_context)
        self._group = group or Group()
        whole, shard = self._whole, self._group.shard
        self.architecture = a = of_rank(whole, shard)
        self.weights: Weights = (shared or SharedWeights()).load(
            weights_key(checkpoint, device, dtype, fp8, shard),
            lambda: load_weights(checkpoint, whole, device, dtype, fp8, shard),
        )
        self.device, self.dtype = device, dtype
        self.modular = (
            ModularHead(checkpoint, read_cross_encoder(checkpoint), device, dtype) if a.modular else None
        )
        self.adapters = load_adapters(adapters, checkpoint, whole, self.weights) if adapters else None
        self.after_layer: Advance = no_progress
        """Called after each layer of a forward that the host computes or launches, but not by a CUDA graph."""
        # transformers rounds the factor to the embedding's dtype.
        self._embedding_scale = (
            torch.tensor(a.embedding_scale, dtype=dtype).item()
            if a.family.scaled_embedding
            else a.embedding_scale
        )
        ropes = {kind: self._rope(config, kind, a.of_layer(index)) for index, kind in enumerate(a.rope_kinds)}
        self._ropes = [ropes[kind] for kind in a.rope_kinds]
        self._recurrent = [a.recurrent[:index].count(True) for index in range(a.layers)]
        """For each layer the number of recurrent ones before it."""
        self._kept = {source for index, source in enumerate(a.kv_sources) if source != index}
        """Layers whose keys and values others read."""

    def over_ranks(self, ops: Ops) -> Ops:
        """Operations of this rank's sizes, with the exchanges between ranks, if there are several."""
        a, whole, shard = self.architecture, self._whole, self._group.shard
        if shard.ranks == 1:
            return ops
        wide = WideNorms(
            whole.heads * a.head_dim, whole.kv_heads * a.head_dim, shard.copies(whole.kv_heads), a.norm_eps
        )
        return ParallelOps(
            ops, self._group, shard.span(a.vocab_size), a.heads, a.kv_heads, a.head_dim,
            wide if a.family.qk_norm_of_all_heads else None,
        )  # fmt: skip

    def head(self) -> LMHead:
        a = self.architecture
        # A classifier's few rows are on every rank.
        group = Group() if a.is_classifier else self._group
        w = self.weights
        first: Callable[[Tensor], Tensor] | None = self.modular if a.pooling is None else None
        if w.head_input is not None:
            first = partial(_first_layer, w.head_input, w.head_norm, a.norm_eps)
        return LMHead(w.head, a.logit_soft_cap, w.head_bias, group, a.vocab_size, first)

    def _rope(self, config: Any, kind: str | bool, a: Architecture) -> Rope | None:
        if not kind:
            return None
        key = kind if isinstance(kind, str) else None
        if a.family.sizes_by_layer:
            config = config.per_layer_config[key]
        scaled = a.family.scaled_queries
        return make_rope(config, key, a.head_dim, self.device, a.context_length, a.rotated_dim, scaled)

    @property
    def ranks(self) -> int:
        return self._group.shard.ranks

    @property
    def attention_shape(self) -> AttentionShape:
        a = self.architecture
        sinks = tuple(layer.sinks for layer in self.weights.layers if layer.sinks is not None)
        return AttentionShape(
            a.heads, a.kv_heads, a.head_dim, a.attention_scale, a.attention_soft_cap, a.windows, sinks or None
        )

    @property
    def slot_bytes(self) -> int:
        a = self.architecture
        return 2 * a.attention_layers * a.key_width * self.weights.embedding.element_size()

    def new_pool(self, slots: int, layers: int | None = None) -> Tensor:
        """An empty KV pool, for all layers with keys or for so many: [layers, slots, 2, kv_heads, head_dim]."""
        a = self.architecture
        heads = (1, a.key_width) if a.family.sizes_by_layer else (a.kv_heads, a.head_dim)
        shape = (a.attention_layers if layers is None else layers, slots, 2, *heads)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    def layer_pools(self, pools: Sequence[Tensor]) -> list[Tensor]:
        """Each layer's pool with the heads of the layer: [slots, 2, kv_heads, head_dim]."""
        a = self.architecture
        if not a.family.sizes_by_layer:
            return list(pools)
        return [
            pools[source][:, :, 0, : kv_heads * head_dim].unflatten(-1, (kv_heads, head_dim))
            for source, (kv_heads, head_dim) in zip(a.kv_sources, a.head_sizes, strict=True)
        ]

    def new_states(self, slots: int) -> StatePool | None:
        """An empty pool of states; None: no layer is recurrent."""
        a = self.architecture
        if a.recurrence is None:
            return None
        return StatePool.empty(a.recurrence, a.recurrent_layers, slots, self.dtype, self.device)

    def body(
        self,
        inputs: ModelInputs,
        ops: Ops,
        attention: Attention,
        pool: Tensor | Sequence[Tensor],
        span: range | None = None,
        x: Tensor | None = None,
        recurrence: Recurrence | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Compute all layers up to and including the last one's attention, or some of them with the same bits.

        Args:
            inputs: T rows, for which attention is prepared.
            pool: For each layer [slots, 2, kv_heads, head_dim]; layers may have different numbers of slots, and
                those of recurrent layers are not used.
            span: These consecutive layers; None: all.
            x: The residual stream behind the layer before them, updated in place; None: they begin with the first.
            recurrence: Recurrence of the same rows; None: there are no recurrent layers.

        Returns:
            The residual stream, [T, hidden], and the output of the last layer's attention, [T, heads head_dim], or
            recurrence, [T, values].
        """
        a, layers = self.architecture, self.weights.layers
        span = range(a.layers) if span is None else span
        angles = inputs.positions if inputs.angles is None else inputs.angles
        norm, fp8 = layers[span.start].input_norm, layers[span.start].qkv.reads_fp8
        ids = ops.adapt(inputs.input_ids)
        if x is None:
            x, h = ops.embed(ids, self.weights.embedding, self._embedding_scale, norm, fp8)
        else:
            nothing = torch.zeros_like(x, dtype=self.dtype)
            h = ops.add_norm(x, nothing, layers[span.start - 1].post_mlp_norm, norm, fp8)
        tables, of_sources = self.weights.own_inputs, dict[int, Tensor]()
        own = None if tables is None else own_inputs(tables, ids, x, ops)
        for index in span:
            layer, source = layers[index], a.kv_sources[index]
            qkv = ops.project(layer.qkv, h)
            if layer.gemma4 is not None and layer.gemma4.keys_as_values:
                qkv = torch.cat((qkv, qkv[:, a.heads * pool[index].shape[-1] :]), dim=1)
            if recurrence is not None and layer.recurrent is not None:
                attended = recurrence.mix(self._recurrent[index], layer.recurrent, qkv)
            else:
                ops.rope_and_cache(
                    layer, self._ropes[index], qkv, angles, pool[index], inputs.slot_mapping[index]
                )
                if source != index:
                    qkv = torch.cat((qkv, of_sources[source]), dim=1)
                elif index in self._kept:
                    of_sources[index] = qkv[:, a.heads * pool[index].shape[-1] :]
                attended = attention.attend(index, qkv, pool[index])
                if layer.output_gate is not None:
                    attended *= ops.project(layer.output_gate, h).sigmoid()
            self.after_layer()
            if index < a.layers - 1:
                norm, fp8 = layers[index + 1].input_norm, layers[index + 1].qkv.reads_fp8
                if a.family.parallel_mlp:
                    h = ops.add_norm(x, self._parallel(layer, h, attended, ops), None, norm, fp8)
                    continue
                h = self._after_attention(layer, x, attended, ops)
                if layer.gemma4 is not None:
                    of_layer = None if own is None else own[:, index]
                    h = finish_layer(layer, x, self._mlp(layer, h, ops), of_layer, norm, ops)
                elif isinstance(layer.mlp, Mlp):
                    gated = ops.gate(layer.mlp.gate_up, h, layer.mlp.down.reads_fp8)
                    h = ops.project_add_norm(x, layer.mlp.down, gated, layer.post_mlp_norm, norm, fp8)
                else:
                    added = ops.reduce(ops.experts(layer.mlp, h))
                    h = ops.add_norm(x, added, layer.post_mlp_norm, norm, fp8)
        # The tail reads the last layer's own input, too.
        return x, attended if own is None else torch.cat((attended, own[:, -1]), dim=1)

    def tail(self, x: Tensor, attended: Tensor, ops: Ops, ids: Tensor | None = None) -> Tensor:
        """Compute the rest of the last layer and the final norm, only for the R rows that are read.

        The residual stream, [R, hidden], and attention's output, [R, heads head_dim], become [R, hidden]; `ids`,
        int32 [R], are needed under adapters alone.
        """
        if (parts := -(-len(x) // ROWS_AT_ONCE)) > 1:
            # Where every token is read, as many rows as a forward has would be alive beside its graphs' memory.
            of_ids = [None] * parts if ids is None else ids.tensor_split(parts)
            spans = zip(x.tensor_split(parts), attended.tensor_split(parts), of_ids, strict=True)
            return torch.cat([self.tail(one, other, ops, own) for one, other, own in spans])
        if ids is not None:
            ops.adapt(ids)
        layer = self.weights.layers[-1]
        if self.architecture.family.parallel_mlp:
            h = ops.add_norm(
                x, torch.zeros_like(x, dtype=self.dtype), None, layer.input_norm, layer.qkv.reads_fp8
            )
            out = self._parallel(layer, h, attended, ops)
        elif layer.gemma4 is not None:
            attended, own = attended.tensor_split((attended.shape[1] - self.architecture.own_input,), dim=1)
            update = self._mlp(layer, self._after_attention(layer, x, attended, ops), ops)
            last: Tensor = finish_layer(layer, x, update, own, self.weights.final_norm, ops)
            return last
        else:
            out = ops.reduce(self._mlp(layer, self._after_attention(layer, x, attended, ops), ops))
        # Not quantised: the LM head is never in fp8.
        final: Tensor = ops.add_norm(x, out, layer.post_mlp_norm, self.weights.final_norm)
        return final

    def _after_attention(self, layer: LayerWeights, x: Tensor, attended: Tensor, ops: Ops) -> Any:
        """Add attention's output to x, in place; returns the input of the MLP."""
        projected = _as_read(layer.output, attended, ops)
        post, norm = layer.post_attention_norm, layer.mlp_norm
        if isinstance(layer.mlp, Mlp):
            return ops.project_add_norm(x, layer.output, projected, post, norm, layer.mlp.gate_up.reads_fp8)
        # Experts are not in fp8.
        return ops.add_norm(x, ops.reduce(ops.project(layer.output, projected)), post, norm)

    def _mlp(self, layer: LayerWeights, h: Any, ops: Ops) -> Tensor:
        """Output of the MLP or experts, which is added to x; on one of several ranks its part."""
        if isinstance(layer.mlp, Mlp):
            return ops.project(layer.mlp.down, ops.gate(layer.mlp.gate_up, h, layer.mlp.down.reads_fp8))
        return ops.experts(layer.mlp, h)

    def _parallel(self, layer: LayerWeights, h: Any, attended: Tensor, ops: Ops) -> Tensor:
        """The sum of what attention and an MLP that reads the same h add to x."""
        projected = _as_read(layer.output, attended, ops)
        return ops.reduce(ops.project(layer.output, projected).add_(self._mlp(layer, h, ops)))


def _first_layer(projection: Projection, norm: Tensor | None, eps: float, hidden: Tensor) -> Tensor:
    """Compute the first layer of a classifier's head: [R, hidden] to [R, inner]."""
    inner = projection(hidden)
    if norm is None:
        return relu(inner)
    parts = inner.float().unflatten(1, norm.shape)
    return (rms_norm(parts, norm.shape[1:], eps=eps) * norm).flatten(1)


def _as_read(projection: Projection, x: Tensor, ops: Ops) -> Any:
    return ops.quantise(x) if projection.reads_fp8 else x


def weights_key(
    checkpoint: Path, device: torch.device, dtype: torch.dtype, fp8: bool = False, shard: Shard = WHOLE
) -> str:
    """Key of a checkpoint's weights in memory: two decoders with the same key could share them."""
    files = sorted((file.name, file.stat().st_mtime_ns) for file in checkpoint.glob("*.safetensors"))
    digest = sha256(repr((str(checkpoint.resolve()), files)).encode()).hexdigest()[:12]
    of_rank = f"-{shard.rank}of{shard.ranks}" if shard.ranks > 1 else ""
    key = f"{digest}-{device}-{dtype}{'-fp8' if fp8 else ''}{of_rank}"
    return key.replace(":", "").replace("torch.", "")
