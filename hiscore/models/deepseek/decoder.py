"""The decoder with a lightning indexer over packed rows: one loop for prefill, decode, and every device.

No shape depends on data. The cache has the places of rows, selects those that a layer sees, and attends to them.
"""

from pathlib import Path

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.layers.lm_head import LMHead
from hiscore.layers.moe import moe, shared_mlp
from hiscore.layers.weights import Experts, Mlp
from hiscore.models.decoder import weights_key
from hiscore.models.deepseek import mla
from hiscore.models.deepseek.config import read_architecture
from hiscore.models.deepseek.functional import rms_norm
from hiscore.models.deepseek.indexer import index_key, index_query
from hiscore.models.deepseek.latent_cache import LatentCache
from hiscore.models.deepseek.loader import load_weights
from hiscore.models.deepseek.sharding import of_rank
from hiscore.models.deepseek.weights import DsaLayerWeights, DsaWeights
from hiscore.models.rotary import make_rope
from hiscore.parallel.group import Group
from hiscore.server.progress import Advance, no_progress
from hiscore.server.shared_weights import SharedWeights


class DsaDecoder:
    """Weights, rotary tables and the loop over layers. The cache is passed in."""

    def __init__(
        self,
        checkpoint: Path,
        device: torch.device,
        dtype: torch.dtype,
        max_context: int | None = None,
        keeps_fp8: bool = False,
        group: Group | None = None,
        shared: SharedWeights | None = None,
    ) -> None:
        self._group = group or Group()
        whole, config = read_architecture(checkpoint, max_context)
        self.architecture = of_rank(whole, self._group.shard)
        shard = self._group.shard
        self.weights: DsaWeights = (shared or SharedWeights()).load(
            weights_key(checkpoint, device, dtype, keeps_fp8, shard),
            lambda: load_weights(checkpoint, whole, device, dtype, keeps_fp8, shard),
        )
        self.device, self.dtype = device, dtype
        self.after_layer: Advance = no_progress
        self._rope = make_rope(
            config, None, self.architecture.rope_dim, device, self.architecture.context_length
        )

    @property
    def attention_shape(self) -> AttentionShape:
        """Shape of attention over latents: all heads share one cache head."""
        a = self.architecture
        return AttentionShape(a.heads, 1, a.row_dim, a.attention_scale, None, (None,) * a.layers)

    def head(self) -> LMHead:
        return LMHead(self.weights.head, None, group=self._group, vocabulary=self.architecture.vocab_size)

    def body(
        self, input_ids: Tensor, positions: Tensor, cache: LatentCache, step: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Compute all layers up to and including the last one's attention; see `Decoder.body`.

        `input_ids` and `positions` are int32 [T], and the cache is prepared for these rows. In a decode step, of
        few rows, experts have products of their own. Attention's output is its values, [T, heads, value_dim].
        """
        layers, last = self.weights.layers, self.architecture.layers - 1
        cos, sin = self._rope.cos[positions], self._rope.sin[positions]
        x = self._embed(input_ids)
        for index, layer in enumerate(layers):
            attended = self._attend(index, layer, x, cos, sin, cache)
            self.after_layer()
            if index < last:
                x = self._after_attention(layer, x, attended, step)
        return x, attended

    def tail(self, x: Tensor, attended: Tensor, step: bool = False) -> Tensor:
        """Compute the rest of the last layer and the final norm of rows that are read, like `Decoder.tail`."""
        x = self._after_attention(self.weights.layers[-1], x, attended, step)
        return rms_norm(x, self.weights.final_norm, self.architecture.norm_eps)

    def _embed(self, ids: Tensor) -> Tensor:
        """Look up embeddings: each of several ranks has those of some tokens."""
        table, shard = self.weights.embedding, self._group.shard
        if shard.ranks == 1:
            return table[ids]
        at = ids - shard.span(self.architecture.vocab_size).start
        held = (at >= 0) & (at < len(table))
        return self._group.sum(table[torch.where(held, at, 0)].masked_fill_(~held[:, None], 0))

    def _attend(
        self, index: int, layer: DsaLayerWeights, x: Tensor, cos: Tensor, sin: Tensor, cache: LatentCache
    ) -> Tensor:
        a = self.architecture
        h = rms_norm(x, layer.input_norm, a.norm_eps)
        new = mla.project(layer.attention, a, h, cos, sin)
        w, indexer = layer.attention, layer.indexer
        cache.keep(index, new.row, None if indexer is None else index_key(indexer, a.indexer, h, cos, sin))
        full, rows = cache.attend_full(index, w, new), cache.selecting
        if rows is not None:
            if full is not None and not len(rows):
                return full
            h, cos, sin, new = h[rows], cos[rows], sin[rows], new.of(rows)
        selects = None if indexer is None else index_query(indexer, a.indexer, h, new.q_low, cos, sin)
        values = mla.values(w, cache.attend(index, mla.absorbed(w, new), selects))
        return values if full is None or rows is None else full.index_copy_(0, rows, values)

    def _after_attention(self, layer: DsaLayerWeights, x: Tensor, attended: Tensor, step: bool) -> Tensor:
        x = x + self._group.sum(mla.output(layer.attention, attended))
        h = rms_norm(x, layer.mlp_norm, self.architecture.norm_eps)
        if isinstance(layer.mlp, Mlp):
            update = shared_mlp(layer.mlp, h, self.architecture.experts.activation)
        else:
            update = self._experts(layer.mlp, h, step)
        return x + self._group.sum(update)

    def _experts(self, experts: Experts, h: Tensor, step: bool) -> Tensor:
        if not h.is_cuda:
            return moe(experts, h)
        from hiscore.layers import moe_triton

        return moe_triton.moe(experts, h, step)
