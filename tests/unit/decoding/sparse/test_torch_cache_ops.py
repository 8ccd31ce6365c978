"""A prompt from staging to the host, the buffer, the dense layers and the index; back after a preemption."""

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse import block_tables
from hiscore.decoding.sparse.block_tables import slot_mapping
from hiscore.decoding.sparse.torch_cache_ops import TorchCacheOps
from tests.support.decode_cache import poison

LAYERS, HEADS, KV_HEADS, WIDTH, PAGE, LENGTH = 3, 6, 2, 8, 4, 41
SHAPE = CacheShape(
    layers=LAYERS, kv_heads=KV_HEADS, kv_parts=2, head_dim=WIDTH, page_size=PAGE, max_sequences=3,
    max_pages=30, host_pages=60,
    device_pages=40, lru_pages=6, ring_pages=2, top_pages=5, dense_layers=frozenset({1}), index_kind="bounds",
)  # fmt: skip
ATTENTION = AttentionShape(HEADS, KV_HEADS, WIDTH, 0.3, None, (None,) * LAYERS)


def random(*size: int, seed: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def step(cache: KVCache, seq_index: int) -> list[Tensor]:
    """What one step's row gets in each layer; its token goes to the host as well."""
    ops = TorchCacheOps(cache, ATTENTION)
    rows = StepBatch(torch.tensor([seq_index], dtype=torch.int32), torch.tensor([LENGTH], dtype=torch.int32))
    host_slots, buffer = slot_mapping(cache, rows)
    outs = []
    for layer in range(LAYERS):
        q, kv = random(1, HEADS, WIDTH, seed=layer), random(1, 2, KV_HEADS, WIDTH, seed=9 + layer)
        cache.tokens(layer)[(host_slots if layer in cache.dense else buffer).long()] = kv
        if layer in cache.dense:
            lists = ops.all_pages(rows)
        else:
            ops.write_index(layer, kv[:, 0], host_slots)
            lists = ops.select_pages(layer, ops.page_scores(layer, q, rows), rows).lists
        outs.append(ops.attend(layer, q, lists, rows))
    ops.offload_step(host_slots, buffer)
    for layer in range(LAYERS):
        kv = random(1, 2, KV_HEADS, WIDTH, seed=9 + layer)
        assert torch.equal(
            cache.host_kv[layer][host_slots.long() // PAGE, :, :, host_slots.long() % PAGE],
            kv.transpose(1, 2),
        )
    return outs


def admit(
    cache: KVCache, staging: Tensor, slots: Tensor, seq_index: int, host_pages: Tensor, device_pages: Tensor
) -> None:
    ops, at = TorchCacheOps(cache, ATTENTION), torch.arange(LENGTH)
    seeds = block_tables.admit(cache, seq_index, LENGTH, host_pages, device_pages)
    host_slots = (host_pages[at // PAGE] * PAGE + at % PAGE).int()
    ops.fill_dense(staging, slots, host_slots)
    ops.index_prompt(staging, slots, host_pages.int(), host_slots)
    tokens = (seeds.pages[:, None] * PAGE + torch.arange(PAGE)).flatten()
    into = (seeds.device_pages[:, None] * PAGE + torch.arange(PAGE)).flatten()
    ops.fill_buffer(staging, slots[tokens[tokens < LENGTH]], into[tokens < LENGTH].int())


def test_a_preempted_stream_goes_on_from_the_host_as_if_never_gone() -> None:
    staging = random(LAYERS, 200, 2, KV_HEADS, WIDTH, seed=5)
    slots = torch.randperm(200, generator=torch.Generator().manual_seed(6))[:LENGTH].int()
    host_pages = torch.randperm(60, generator=torch.Generator().manual_seed(7))[:30]
    cache = KVCache.allocate(SHAPE, torch.float32, torch.device("cpu"))
    poison(cache, torch.arange(60), torch.arange(40))
    TorchCacheOps(cache, ATTENTION).offload_prompt(staging, slots, host_pages.int())
    admit(cache, staging, slots, 2, host_pages, torch.arange(8, 16))
    first = step(cache, 2)
    assert not any(out.isnan().any() for out in first)
    assert int(cache.misses) > 0

    poison(cache, host_pages[:0], torch.arange(8, 16))
    restored = torch.full_like(staging, float("nan"))
    TorchCacheOps(cache, ATTENTION).restore_prompt(restored, slots, host_pages.int())
    assert torch.equal(restored[:, slots.long()], staging[:, slots.long()])
    admit(cache, restored, slots, 0, host_pages, torch.arange(20, 28))
    again = step(cache, 0)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))

    # The control: with one wrong number in what was restored, the last layer's output differs.
    restored[2, slots[40].long(), 1] = 0
    admit(cache, restored, slots, 1, host_pages, torch.arange(30, 38))
    assert not torch.equal(step(cache, 1)[2], first[2])
