"""Work of ranks that is measured: bringing the rows of latents that a step misses in a layer to the device."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps
from hiscore.graph_capture import GraphCapture
from hiscore.parallel.rank import Rank
from hiscore.parallel.shard import WHOLE

LAYERS, REPLAYS = 16, 30
PER_DIGIT = 256
"""Whole numbers up to this are exact in bfloat16."""


@dataclass(frozen=True)
class Case:
    """What is missed.

    Attributes:
        streams: Sequences of a step.
        selected: Rows that each of them selects in a layer.
        missing: How many of these are on the host alone.
        width: Numbers of a row.
        shared: Whether ranks share the pool.
    """

    streams: int
    selected: int
    missing: int
    width: int
    shared: bool


def arrive(rank: Rank) -> None:
    """Work: nothing but the import of this module, for which a rank may be silent for seconds."""


def time_case(rank: Rank, case: Case) -> float:
    """Work: seconds of a layer on the slowest rank.

    Raises:
        RuntimeError: A row is not what it should be.
    """
    context = 4 * case.selected
    shape = CacheShape(
        layers=1, kv_heads=1, kv_parts=1, head_dim=case.width, page_size=1, max_sequences=case.streams,
        max_pages=context, host_pages=case.streams * context, device_pages=case.streams * 2 * case.selected,
        lru_pages=case.selected, ring_pages=1, top_pages=case.selected, index_kind="dsa", index_dim=16,
        host_share=rank.shard if case.shared else WHOLE,
    )  # fmt: skip
    cache = KVCache.allocate(shape, torch.bfloat16, rank.device, rank.group)
    mine, ranks = shape.host_share.rank, shape.host_share.ranks
    cache.host_kv[0, :, 0, 0, 0] = numbered(torch.arange(mine, shape.host_pages, ranks), case.width)
    # The same on all ranks.
    generator = torch.Generator().manual_seed(case.streams)
    from_pages = torch.randperm(shape.host_pages, generator=generator).view(case.streams, 1, -1)
    to_pages = torch.randperm(shape.device_pages, generator=generator).view(case.streams, 1, -1)
    swaps = torch.stack((from_pages[..., : case.selected], to_pages[..., : case.selected]), dim=-1)
    listed = swaps.int().contiguous().to(rank.device)
    counts = torch.full((case.streams, 1), case.missing, dtype=torch.int32, device=rank.device)
    ops = TritonCacheOps(cache, AttentionShape(1, 1, case.width, 1.0, None, (None,)), context)
    seconds = time_layers(lambda: ops._swap_in(0, listed, counts), rank.device)
    source, target = swaps[:, 0, : case.missing].reshape(-1, 2).T
    if not torch.equal(cache.buffer[0, target, 0, 0].cpu(), numbered(source, case.width)):
        raise RuntimeError(f"rank {rank.shard.rank} has got other rows than those that it misses")
    slowest = rank.group.max(torch.tensor([seconds], dtype=torch.float64, device=rank.device))
    return slowest.item()


def numbered(pages: Tensor, width: int) -> Tensor:
    """Rows that say which page they are of: bfloat16 [n, width]."""
    digits = torch.stack((pages % PER_DIGIT, pages // PER_DIGIT % PER_DIGIT, pages // PER_DIGIT**2), dim=1)
    return digits.repeat(1, -(-width // 3))[:, :width].to(torch.bfloat16)


def time_layers(launch: Callable[[], None], device: torch.device) -> float:
    """Median seconds of a launch; on CUDA as part of a graph."""
    if device.type != "cuda":
        began = time.perf_counter()
        launch()
        return time.perf_counter() - began
    torch.cuda.synchronize(device)  # the cache was filled on another stream
    stream = torch.cuda.Stream(device)
    with torch.inference_mode(), torch.cuda.stream(stream), GraphCapture(device) as capture:
        launch()

        def launch_all() -> None:
            for _ in range(LAYERS):
                launch()

        graph, _ = capture.capture(launch_all, stream, "thread_local")
        times: list[float] = []
        for _ in range(REPLAYS):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            times.append(begin.elapsed_time(end) / 1e3 / LAYERS)
    return statistics.median(times)
