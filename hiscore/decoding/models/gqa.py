"""`DecodeModel` for the families that the scorer serves: grouped-query attention (GQA) over keys and values."""

import numpy as np
from torch import Tensor

from hiscore.arrays import divided
from hiscore.attention.flashinfer_prefill import FlashInferAttention
from hiscore.attention.metadata import Forward, SegmentGroup
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.worker import PrefillChunk
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.models.base import staging_slots
from hiscore.decoding.models.states import SequenceStates, plan_states
from hiscore.decoding.sparse.cache_ops import CacheOps, PageLists
from hiscore.layers.ops import Ops
from hiscore.models.decoder import Decoder, ModelInputs
from hiscore.prefill.pools import Pools
from hiscore.prefill.runner import make_runner
from hiscore.recurrence.metadata import FIRST_SEQUENCE_SLOT


class GroupedModel:
    """Prefills like the scorer; decodes with the same decoder over pages of the cache."""

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        staging_tokens: int,
        cache_config: CacheConfig,
        paged_attention: FlashInferAttention | None,
    ) -> None:
        """Allocate staging, unless the cache has it; without `paged_attention` our own kernel prefills."""
        a = decoder.architecture
        self.cache = cache
        self._decoder = decoder
        shape, max_rows = cache.shape, cache_config.prefill_token_budget
        staging = cache.staging
        if staging is None:
            staging = decoder.new_pool(staging_tokens, len(shape.host_layers))
        windows = {layer: cache.tokens(layer) for layer in cache.windowed}
        pool = decoder.new_states(FIRST_SEQUENCE_SLOT + cache_config.state_slots)
        pools = Pools(staging, windows, shape.window_pages * shape.page_size, pool)
        self.states = None if pool is None else SequenceStates(pool, cache_config.max_sequences)
        self._runner = make_runner(decoder, staging_tokens, max_rows, pools, paged_attention)
        self.staging = staging
        self._head = decoder.head()
        self._ops = _make_ops(decoder)
        self._tokens = [
            staging[:0] if is_recurrent else cache.tokens(layer)
            for layer, is_recurrent in enumerate(a.recurrent)
        ]

    def prefill(self, chunks: list[PrefillChunk]) -> Tensor:
        shape = self.cache.shape
        forward = pack_chunks(chunks, shape.page_size)
        if self.states is not None:
            forward = forward._replace(states=plan_states(chunks))
        hidden = self._runner.forward([forward])
        if self.states is not None:
            self.states.keep_ends(chunks)
        return self._head.logits(hidden)

    def decode(
        self, ids: Tensor, batch: StepBatch, ops: CacheOps, full_attention: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        host_slots, buffer_slots = ops.slot_mapping(batch)
        attention = CacheAttention(self._decoder, self.cache, ops, batch, host_slots, full_attention)
        slots = dict.fromkeys(self.cache.dense, host_slots)
        if self.cache.windowed:
            slots |= dict.fromkeys(
                self.cache.windowed, ops.slot_mapping(batch, self.cache.window_block_table)[0]
            )
        slot_mapping = [slots.get(layer, buffer_slots) for layer in range(len(self._tokens))]
        inputs = ModelInputs(ids, batch.positions, slot_mapping)
        steps = self._runner.steps
        if self.states is not None and steps is not None:
            steps.plan_steps(self.states.slots_of(batch))
        x, attended = self._decoder.body(inputs, self._ops, attention, self._tokens, recurrence=steps)
        logits = self._head.logits(self._decoder.tail(x, attended, self._ops))
        return logits, host_slots, buffer_slots

    def index_prompt(self, ops: CacheOps, slots: Tensor, host_pages: Tensor, host_slots: Tensor) -> None:
        ops.index_prompt(self.staging, slots, host_pages, host_slots)

    def restore_index(self, slots: Tensor, host_pages: Tensor) -> None:
        pass  # a prefill attends to everything


class CacheAttention:
    """`Attention` of one decode step: over the selected pages in sparse layers, over everything in dense ones.

    With `full_attention`, all rows are resident, and sparse layers attend to everything as well. Nothing is then
    selected or added to the index: a sequence that is spilled later gets its index then.
    """

    def __init__(
        self,
        decoder: Decoder,
        cache: KVCache,
        ops: CacheOps,
        batch: StepBatch,
        host_slots: Tensor,
        full_attention: bool,
    ) -> None:
        a = decoder.architecture
        self._heads = [a.heads, a.kv_heads, a.kv_heads]
        self._head_dim = a.head_dim
        self._ops, self._batch, self._host_slots = ops, batch, host_slots
        self._fixed_pages: dict[int, PageLists] = {}
        if cache.dense:
            self._fixed_pages |= dict.fromkeys(cache.dense, ops.all_pages(batch))
        if cache.windowed:
            self._fixed_pages |= dict.fromkeys(cache.windowed, ops.all_pages(batch, cache.window_block_table))
        if full_attention and cache.sparse:
            self._fixed_pages |= dict.fromkeys(cache.sparse, ops.all_pages(batch, cache.device_block_table))

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        q, k, _ = qkv.unflatten(1, (-1, self._head_dim)).split(self._heads, dim=1)
        pages = self._fixed_pages.get(layer)
        if pages is not None:
            return self._ops.attend(layer, q, pages, self._batch).flatten(1)
        self._ops.write_index(layer, k, self._host_slots)
        chosen = self._ops.select_pages(layer, self._ops.page_scores(layer, q, self._batch), self._batch)
        return self._ops.attend(layer, q, chosen.lists, self._batch).flatten(1)


def pack_chunks(chunks: list[PrefillChunk], page_size: int = 1) -> Forward:
    """Pack parts of prompts into one forward: each attends to its prompt's earlier parts and to itself."""
    ends = np.cumsum([len(chunk.tokens) for chunk in chunks])
    prompt_slots = [staging_slots(chunk.staging_pages, chunk.end) for chunk in chunks]
    groups = tuple(
        SegmentGroup(
            int(end) - len(chunk.tokens),
            int(end),
            slots[: chunk.start].astype(np.int64),
            slice(0, 0),
            window_slots=divided(chunk.window_pages, page_size)[: chunk.start].astype(np.int64),
        )
        for chunk, end, slots in zip(chunks, ends, prompt_slots, strict=True)
    )
    last = np.array([chunk.is_last for chunk in chunks])
    positions = [chunk.start + np.arange(len(chunk.tokens)) for chunk in chunks]
    new_slots = [slots[chunk.start :] for chunk, slots in zip(chunks, prompt_slots, strict=True)]
    return Forward(
        input_ids=np.concatenate([chunk.tokens for chunk in chunks]).astype(np.int32),
        positions=np.concatenate(positions).astype(np.int32),
        cu_seqlens=np.concatenate(([0], ends)).astype(np.int32),
        groups=groups,
        slot_mapping=np.concatenate(new_slots).astype(np.int64),
        scored_rows=ends[last].astype(np.int64) - 1,
        scored_items=np.arange(last.sum(), dtype=np.int64),
    )


def _make_ops(decoder: Decoder) -> Ops:
    a = decoder.architecture
    sizes = a.heads, a.kv_heads, a.head_dim, a.norm_eps, a.activation, a.family.layer_norms
    if decoder.device.type != "cuda":
        return decoder.over_ranks(Ops(*sizes))
    from hiscore.layers.step_products import StepProducts
    from hiscore.layers.triton_ops import TritonOps, hopper_sm_count

    products = StepProducts.of(decoder.weights.layers, on_hopper=hopper_sm_count() > 0)
    return decoder.over_ranks(TritonOps(*sizes, step_products=products))
