"""Shared by the tests of a decode step's kernels: the device, caches on it, and equality to the bit."""

import copy
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.worker.sampling_options import OPTIONS, fill_options

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SHAPE = CacheShape(
    layers=3, kv_heads=2, kv_parts=2, head_dim=4, page_size=4, max_sequences=6, max_pages=24,
    host_pages=80, device_pages=48,
    lru_pages=7, ring_pages=2, top_pages=5, dense_layers=frozenset({1}), index_kind="bounds",
)  # fmt: skip


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def padded_options(rows: int, seq_indices: np.ndarray, sampling: SamplingBatch) -> np.ndarray:
    """Sampling options of a step, with padding: float64 [OPTIONS, rows]."""
    options = np.zeros((OPTIONS, rows))
    fill_options(options, seq_indices, sampling)
    return options


def sample_rows(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    uniforms: Tensor,
    min_p: Tensor,
    block: int | None = None,
    listed: int = 1_024,
) -> Tensor:
    """Draw tokens of rows by kernels, as `sampler.sample` does in PyTorch."""
    from hiscore.decoding.worker.triton_sampler import draw

    options = logits.new_zeros((OPTIONS, len(logits)), dtype=torch.float64)
    options[:2] = -1
    for place, values in enumerate((temperature, top_k, top_p, uniforms, min_p), start=2):
        options[place] = values
    return draw(logits, options, None, block, listed)


def attention_shape(cache: CacheShape, group: int, **changed: object) -> AttentionShape:
    shape = AttentionShape(
        cache.kv_heads * group, cache.kv_heads, cache.head_dim, 0.4, None, tuple([None] * cache.layers)
    )
    return replace(shape, **changed)  # type: ignore[arg-type]


def on_device(cache: KVCache) -> KVCache:
    """A copy of a cache for the kernels."""
    moved = copy.deepcopy(cache)
    for name, value in vars(moved).items():
        if isinstance(value, Tensor):
            pinned = name == "host_kv" and DEVICE == "cuda"
            setattr(moved, name, value.pin_memory() if pinned else value.to(DEVICE))
    return moved


def rows_of(seq_indices: list[int], positions: list[int]) -> StepBatch:
    return StepBatch(*(torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (seq_indices, positions)))


def moved(rows: StepBatch, device: str = DEVICE) -> StepBatch:
    return StepBatch(rows.seq_indices.to(device), rows.positions.to(device))


def assert_same(actual: Tensor, expected: Tensor) -> None:
    """Assert the same bits; NaN included."""
    if DEVICE == "cuda":
        # Kernels write the host pool, and reading it on the CPU does not wait for them.
        torch.cuda.synchronize()
    actual, expected = actual.cpu().contiguous(), expected.cpu().contiguous()
    if actual.is_floating_point():
        actual, expected = actual.view(torch.uint8), expected.view(torch.uint8)
    assert torch.equal(actual, expected)


def in_float64(cache: KVCache) -> KVCache:
    plain = copy.deepcopy(cache)
    for name, value in vars(plain).items():
        if isinstance(value, Tensor):
            setattr(plain, name, value.cpu().double() if value.is_floating_point() else value.cpu())
    return plain
