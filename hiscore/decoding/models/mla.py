"""`DecodeModel` for the families with an indexer of their own: one latent row for each token."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.models.base import staging_slots
from hiscore.decoding.models.latent_attention import LatentStep
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.interface import PrefillChunk
from hiscore.device import upload
from hiscore.layers.lm_head import LMHead
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import MAX_ELEMENTS, Segment, StagedLatents

# Of a temporary of a prefill on a CUDA device: 1 GiB of float32.
CUDA_ELEMENTS = 2**28


class LatentModel:
    """Prompts and steps alike select tokens by the checkpoint's indexer, but where everything is asked for."""

    def __init__(self, decoder: DsaDecoder, cache: KVCache, staging_tokens: int) -> None:
        self.cache = cache
        self._decoder, self._device = decoder, decoder.device
        most = CUDA_ELEMENTS if decoder.device.type == "cuda" else MAX_ELEMENTS
        top_k = cache.shape.top_pages
        self._staged = StagedLatents(
            decoder.architecture, staging_tokens, decoder.device, decoder.dtype, top_k, most
        )
        self.staging = self._staged.pool
        self._head = LMHead(decoder.weights.head, None)

    def prefill(self, chunks: Sequence[PrefillChunk]) -> Tensor:
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

    def step(self, ids: Tensor, rows: StepBatch, steps: CacheOps) -> tuple[Tensor, Tensor, Tensor]:
        step = LatentStep(self.cache, steps)
        step.plan(rows)
        x, attended = self._decoder.body(ids, rows.positions, step)
        return self._head.logits(self._decoder.tail(x, attended)), step.home, step.buffer

    def index_prompt(self, steps: CacheOps, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        for layer, keys in zip(self._staged.index_layers, self._staged.index_keys, strict=True):
            if layer in self.cache.indexed:
                steps.write_index(layer, keys[slots.long()], host_slots)
