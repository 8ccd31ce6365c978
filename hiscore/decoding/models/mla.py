"""`DecodeModel` for the families with latent attention (MLA) and an indexer: one latent row per token."""

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.interface.worker import PrefillChunk
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.models.base import staging_slots
from hiscore.decoding.models.states import SequenceStates
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.device.copies import upload
from hiscore.models.deepseek.activations import SCORE_ELEMENTS
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.indexer import IndexQuery
from hiscore.models.deepseek.latent_cache import MAX_ELEMENTS, Segment, StagedLatents
from hiscore.models.deepseek.mla import Projected
from hiscore.models.deepseek.weights import MlaWeights


class LatentModel:
    """Selects tokens with the checkpoint's indexer, in prefill as in decode."""

    def __init__(self, decoder: DsaDecoder, cache: KVCache, staging_tokens: int) -> None:
        """Allocate staging for all prompts in prefill."""
        self.cache = cache
        self.states: SequenceStates | None = None
        self._decoder, self._device = decoder, decoder.device
        staged_latents, max_elements = StagedLatents, MAX_ELEMENTS
        if decoder.device.type == "cuda":
            from hiscore.models.deepseek.latent_cache_triton import KernelLatents

            staged_latents, max_elements = KernelLatents, SCORE_ELEMENTS
        self._staged = staged_latents(
            decoder.architecture,
            staging_tokens,
            decoder.device,
            decoder.dtype,
            cache.shape.top_pages,
            max_elements,
        )
        self.staging = self._staged.pool
        self._head = decoder.head()

    def prefill(self, chunks: list[PrefillChunk]) -> Tensor:
        dense = not self.cache.sparse
        segments = [self._segment(chunk, dense) for chunk in chunks]
        self._staged.plan(segments)
        ids = np.concatenate([chunk.tokens for chunk in chunks]).astype(np.int32)
        positions = [chunk.start + np.arange(len(chunk.tokens), dtype=np.int32) for chunk in chunks]
        x, attended = self._decoder.body(
            upload(ids, self._device), upload(np.concatenate(positions), self._device), self._staged
        )
        ends = np.cumsum([len(chunk.tokens) for chunk in chunks])[[chunk.is_last for chunk in chunks]]
        if not len(ends):
            return x.new_empty((0, self._decoder.architecture.vocab_size), dtype=torch.float32)
        last = upload(ends - 1, self._device)
        return self._head.logits(self._decoder.tail(x[last], attended[last]))

    def _segment(self, chunk: PrefillChunk, dense: bool) -> Segment:
        slots = staging_slots(chunk.staging_pages, chunk.end).astype(np.int64)
        return Segment(upload(slots, self._device), len(chunk.tokens), chunk.full_attention or dense)

    def decode(
        self, ids: Tensor, batch: StepBatch, ops: CacheOps, full_attention: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        step = LatentStep(self.cache, ops, batch, full_attention)
        x, attended = self._decoder.body(ids, batch.positions, step, step=True)
        logits = self._head.logits(self._decoder.tail(x, attended, step=True))
        return logits, step.host_slots, step.buffer_slots

    def index_prompt(self, ops: CacheOps, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        for layer, keys in zip(self._staged.index_layers, self._staged.index_keys, strict=True):
            if layer in self.cache.indexed:
                ops.write_index(layer, keys[slots.long()], host_slots)

    def restore_index(self, slots: Tensor, host_pages: Tensor) -> None:
        page_size = self.cache.shape.page_size
        offsets = torch.arange(page_size, device=host_pages.device)
        at = (host_pages.long()[:, None] * page_size + offsets).flatten()
        for layer, keys in zip(self._staged.index_layers, self._staged.index_keys, strict=True):
            if layer in self.cache.indexed:
                keys.index_copy_(0, slots.long(), self.cache.index_of(layer)[at])


class LatentStep:
    """`LatentCache` of a step: no shape depends on data. Layers that share a selection each buffer it."""

    selecting: Tensor | None = None

    def __init__(self, cache: KVCache, ops: CacheOps, batch: StepBatch, full_attention: bool = False) -> None:
        """Find the new tokens' slots; the first row is not padding."""
        self._cache, self._ops, self._batch = cache, ops, batch
        self.host_slots, self.buffer_slots = ops.slot_mapping(batch)
        self._of_dense = ops.all_pages(batch) if cache.dense else None
        resident = full_attention and cache.sparse
        self._resident = ops.all_pages(batch, cache.device_block_table) if resident else None
        self._scores: Tensor | None = None

    def keep(self, layer: int, row: Tensor, index_key: Tensor | None) -> None:
        """Write the new rows, [R, row_dim], to the device buffers or, in a dense layer, to `KVCache.dense_kv`."""
        slots, valid = self.host_slots if layer in self._cache.dense else self.buffer_slots, self._batch.valid
        # Padding writes the first row once more: leaving it out would make a shape depend on data.
        slots = torch.where(valid, slots, slots[0]).long()
        self._cache.tokens(layer)[slots, 0, 0] = torch.where(valid[:, None], row, row[0])
        if index_key is not None and layer in self._cache.indexed:
            self._ops.write_index(layer, index_key, self.host_slots)

    def attend(self, layer: int, q: Tensor, index: IndexQuery | None) -> Tensor:
        """Attend to the tokens that the indexer selects: q, [R, heads, row_dim], to [R, heads, latent_rank].

        Without `index` the layer shares the selection of a layer before it; raise ValueError if there is none.
        """
        pages = self._of_dense if layer in self._cache.dense else self._resident
        if pages is not None:
            return self._ops.attend(layer, q, pages, self._batch)
        if index is not None:
            self._scores = self._ops.indexer_scores(layer, index.q, index.gates, self._batch)
        if self._scores is None:
            raise ValueError(f"layer {layer} shares a selection that no layer before it has made")
        chosen = self._ops.select_pages(layer, self._scores, self._batch)
        return self._ops.attend(layer, q, chosen.lists, self._batch)

    def attend_full(self, layer: int, w: MlaWeights, new: Projected) -> None:
        """Return None: a step has one row of each sequence, for which nothing is expanded."""
