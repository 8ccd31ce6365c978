"""A decode step over latents: what the decoder with an indexer asks of its cache, in terms of `CacheOps`.

Rows lie in pages of one token. Layers that share a selection bring it to their own buffers, each by its own
residency.
"""

import torch
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.models.deepseek.indexer import IndexQuery


class LatentStep:
    """`LatentCache` of one decode step after another; `plan` comes before each. No shape depends on data."""

    def __init__(self, cache: KVCache, steps: CacheOps) -> None:
        self._cache, self._steps = cache, steps

    def plan(self, rows: StepBatch) -> None:
        """Say which streams the next forward's rows belong to; the first row is no padding."""
        self._rows = rows
        self.home, self.buffer = self._steps.slot_mapping(rows)
        self._everything = self._steps.all_pages(rows) if self._cache.dense else None
        self._scores: Tensor | None = None

    def keep(self, layer: int, row: Tensor, index_key: Tensor | None) -> None:
        """Keep the new rows [R, row_dim] in the device's buffer, or in `home` in a dense layer."""
        slots, valid = self.home if layer in self._cache.dense else self.buffer, self._rows.valid
        # Padding writes what the first row writes, to the same place: a shape of its own would depend on data.
        slots = torch.where(valid, slots, slots[0]).long()
        self._cache.tokens(layer)[slots, 0, 0] = torch.where(valid[:, None], row, row[0])
        if index_key is not None and layer in self._cache.indexed:
            self._steps.write_index(layer, index_key, self.home)

    def attend(self, layer: int, q: Tensor, index: IndexQuery | None) -> Tensor:
        """Attend for q [R, heads, row_dim] to what the indexer chooses; returns [R, heads, latent_rank].

        Raises:
            ValueError: the layer shares a selection that no sparse layer before it has made.
        """
        if layer in self._cache.dense and self._everything is not None:
            return self._steps.attend(layer, q, self._everything, self._rows)
        if index is not None:
            self._scores = self._steps.indexer_scores(layer, index.q, index.gates, self._rows)
        if self._scores is None:
            raise ValueError(f"layer {layer} shares a selection that no layer before it has made")
        chosen = self._steps.select_pages(layer, self._scores, self._rows)
        return self._steps.attend(layer, q, chosen.lists, self._rows)
