"""Prompts of a tiny checkpoint with an indexer, decoded while most of their rows are on the host."""

from pathlib import Path

import torch
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.models.mla import LatentStep
from hiscore.decoding.sparse.block_tables import admit, slot_mapping
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.sparse.torch_cache_ops import TorchCacheOps
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from tests.support import tiny_dsa
from tests.support.decode_cache import forget, poison

CPU = torch.device("cpu")
# The shortest never leaves its buffer at first, the longest is far beyond it.
LENGTHS = (40, 17, 3)
STEPS = 24
CAPACITY = max(LENGTHS) + STEPS


class Sequences:
    """Prompts prefilled whole, moved to the host, and decoded step by step through small buffers."""

    def __init__(
        self,
        checkpoint: Path,
        prompts: list[Tensor],
        full: int | None = None,
        dense: frozenset[int] = frozenset(),
    ) -> None:
        self.decoder = DsaDecoder(checkpoint, CPU, torch.float64)
        a = self.decoder.architecture
        shape = CacheShape(
            layers=a.layers, kv_heads=1, kv_parts=1, head_dim=a.row_dim, page_size=1, max_sequences=4,
            max_pages=CAPACITY,
            host_pages=len(prompts) * CAPACITY, device_pages=len(prompts) * CAPACITY,
            lru_pages=a.indexer.top_k + 2, ring_pages=3, top_pages=a.indexer.top_k,
            dense_layers=dense, index_kind="dsa", index_dim=a.indexer.head_dim,
        )  # fmt: skip
        self.cache = KVCache.allocate(shape, torch.float64, CPU)
        poison(self.cache, torch.arange(shape.host_pages), torch.arange(shape.device_pages))
        self.ops: CacheOps = TorchCacheOps(self.cache, self.decoder.attention_shape, a.latent_rank)
        self.lengths = [len(ids) for ids in prompts]
        self.logits = [
            self._admit(seq_index, ids, seq_index == full) for seq_index, ids in enumerate(prompts)
        ]

    def _admit(self, seq_index: int, ids: Tensor, full: bool) -> Tensor:
        """Prefill in two chunks, then fill host, index and buffer; returns the last token's logits."""
        a, cache = self.decoder.architecture, self.cache
        staged = StagedLatents(a, len(ids), CPU, torch.float64)
        slots = torch.randperm(len(ids))
        half = len(ids) // 2
        for start, end in ((0, half), (half, len(ids))):
            staged.plan([Segment(slots[:end], end - start, full or not cache.sparse)])
            x, attended = self.decoder.body(ids[start:end].int(), torch.arange(start, end).int(), staged)
        host_pages = torch.arange(CAPACITY) + seq_index * CAPACITY
        count = CAPACITY if full else min(CAPACITY, cache.shape.buffer_pages)
        device_pages = torch.arange(count) + seq_index * CAPACITY
        seeds = admit(cache, seq_index, len(ids), host_pages, device_pages, full)
        host_slots = host_pages[: len(ids)].int()
        self.ops.offload_prompt(staged.pool, slots, host_pages)
        self.ops.fill_buffer(staged.pool, slots[seeds.pages], seeds.device_pages)
        self.ops.fill_dense(staged.pool, slots, host_slots)
        for layer, keys in zip(staged.index_layers, staged.index_keys, strict=True):
            if layer in cache.sparse:
                self.ops.write_index(layer, keys[slots], host_slots)
        return self.decoder.tail(x[-1:], attended[-1:])[0] @ self.decoder.weights.head.T

    def decode(self, ids: Tensor, seq_indices: list[int], cold: bool = False) -> Tensor:
        """Run one step that feeds ids [R]; returns logits [R, vocabulary]. The offload completes at once."""
        if cold:
            for seq_index in seq_indices:
                forget(self.cache, seq_index)
        positions = [self.lengths[seq_index] for seq_index in seq_indices]
        rows = StepBatch(
            torch.tensor([*seq_indices, -1], dtype=torch.int32),
            torch.tensor([*positions, 0], dtype=torch.int32),
        )
        step = LatentStep(self.cache, self.ops, rows)
        fed = torch.cat((ids, ids[:1])).int()
        hidden = self.decoder.tail(*self.decoder.body(fed, rows.positions, step))
        self.ops.offload_step(*slot_mapping(self.cache, rows))
        for seq_index in seq_indices:
            self.lengths[seq_index] += 1
        return hidden[:-1] @ self.decoder.weights.head.T


def prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(tiny_dsa.VOCABULARY, (length,), generator=generator) for length in LENGTHS]
