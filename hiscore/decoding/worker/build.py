"""Build a worker on a device from settings and a checkpoint."""

import logging
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from hiscore.decoding.interface.cache_config import SHARED_TOKENS, STAGING_PAGE_SIZE
from hiscore.decoding.interface.worker import Worker
from hiscore.decoding.memory.model_sizes import bytes_of_rank, forward_bytes, is_latent, read_shape
from hiscore.decoding.memory.plan import PrefillInputs, memory_budget, plan_memory, prefill_inputs
from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache, staging_token_bytes
from hiscore.decoding.worker.parallel_worker import PLACE, ParallelWorker
from hiscore.decoding.worker.parts import Parts, load_parts, worker_of_parts
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.layers.fp8 import FP8_CAPABILITY
from hiscore.models.config import read_architecture
from hiscore.models.decoder import weights_key
from hiscore.parallel.group import Group
from hiscore.parallel.rank import Leader, Rank
from hiscore.server.server_resources import ServerResources
from hiscore.settings import CacheSettings, DecodeSettings

log = logging.getLogger(__name__)

PARTS = "parts"
"""Key of what a rank has loaded, until its worker is made of it."""

# Tokens of a prefill forward. Running sequences may have to wait for one between two tokens: see `prefill_shares`.
PREFILL_TOKEN_BUDGET = {"cpu": 256, "cuda": SHARED_TOKENS}
LONG_PREFILL_TOKEN_BUDGET, LARGE_DEVICE_BYTES = 8_192, 60 * 2**30
"""Budget on devices of so much memory, unless layers keep a window only: those hold the keys and values of a whole
forward, 2.5 GiB of 8,192 tokens for Gemma 3 12B.
"""
LATENT_PREFILL_TOKEN_BUDGET = 2_048
"""Budget with an indexer: models select so many tokens, and a forward whose rows all see fewer selects none."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def prefill_token_budget(checkpoint: str | Path, device: torch.device) -> int:
    """Choose the tokens of a prefill forward."""
    budget, checkpoint = PREFILL_TOKEN_BUDGET[device.type], Path(checkpoint)
    if is_latent(checkpoint):
        return min(budget, LATENT_PREFILL_TOKEN_BUDGET)
    is_large = device.type == "cuda" and (
        torch.cuda.get_device_properties(device).total_memory >= LARGE_DEVICE_BYTES
    )
    keeps_windows = any(window is not None for window in read_architecture(checkpoint)[0].windows)
    return LONG_PREFILL_TOKEN_BUDGET if is_large and not keeps_windows else budget


@dataclass(frozen=True)
class Build:
    """Parameters of the build on each rank; `budget` is the tokens of one prefill forward at most."""

    settings: DecodeSettings
    checkpoint: Path
    dtype: torch.dtype
    budget: int
    keeps_fp8: bool = False


def make_worker(
    settings: DecodeSettings, checkpoint: Path, leader: Leader, resources: ServerResources
) -> Worker:
    """Plan the memory, load the checkpoint and allocate the pools, on each rank.

    Raises:
        MemoryExceeded: There is no room for it.
        ValueError: A setting does not fit the device or the checkpoint; the message names it.
        RankError: One of these, on one of several ranks.
    """
    where = leader.rank.device
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "bfloat16" if where.type == "cuda" else "float32"
    keeps_fp8 = dtype == "fp8" and is_latent(checkpoint)
    if dtype == "fp8":
        if not keeps_fp8:
            log.warning("fp8 is supported by the scorer only: decode computes in 16 bits, on the CPU in 32")
        dtype = "bfloat16" if where.type == "cuda" else "float32"
    if keeps_fp8 and where.type == "cuda":
        found = torch.cuda.get_device_capability(where)
        if found < FP8_CAPABILITY:
            raise ValueError(f"DTYPE is fp8, which needs compute capability 8.9, but {where} has {found}")
    budget = prefill_token_budget(checkpoint, where)
    what = Build(settings, checkpoint, DTYPES[dtype], budget, keeps_fp8)
    leader.prepare(partial(enter, resources=resources))
    memory = leader.do(partial(agree, what=what))
    leader.prepare(partial(claim, what=what, memory=memory))
    leader.prepare(partial(load, what=what, memory=memory))
    worker = leader.do(assemble, wait_for_all=True)
    return worker if leader.rank.shard.ranks == 1 else ParallelWorker(leader)


def enter(rank: Rank, resources: ServerResources) -> None:
    """Work: take the device, and a place in the server."""
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    rank.held["resources"] = resources


def agree(rank: Rank, what: Build) -> MemoryBudget:
    """Work: agree on pool sizes that all ranks have room for, since a page is the same on each."""
    resources: ServerResources = rank.held["resources"]
    weights = bytes_of_rank(what.checkpoint, what.dtype, what.keeps_fp8, rank.shard)
    own = memory_budget(
        what.settings, rank.device, weights, resources.ledger, rank.shard.ranks * resources.instance.of
    )
    sizes = torch.tensor([own.host_bytes, own.device_bytes], dtype=torch.float64, device=rank.device)
    host_bytes, device_bytes = (-rank.group.max(-sizes)).tolist()
    return replace(own, host_bytes=int(host_bytes), device_bytes=int(device_bytes))


def claim(rank: Rank, what: Build, memory: MemoryBudget) -> None:
    """Work: claim the memory of everything, before any of it is allocated."""
    resources: ServerResources = rank.held["resources"]
    shape_of_model, architecture = read_shape(what.checkpoint, what.settings, rank.shard)
    shape, cache_config = plan_cache(what.settings, shape_of_model, memory, what.dtype, what.budget)
    staging_tokens = cache_config.staging_pages * STAGING_PAGE_SIZE
    size = bytes_of_rank(what.checkpoint, what.dtype, what.keeps_fp8, rank.shard)
    weights = resources.weights_line(
        size, weights_key(what.checkpoint, rank.device, what.dtype, shard=rank.shard)
    )
    on_gpu = rank.device.type == "cuda"
    activations = forward_bytes(
        architecture, what.budget, memory.max_sequences, what.dtype.itemsize, on_gpu,
        shape.top_pages if on_gpu else None,
    )  # fmt: skip
    staging = staging_tokens * staging_token_bytes(shape_of_model, what.dtype, shape.windowed)
    inputs = PrefillInputs(0, 0)
    if not is_latent(what.checkpoint):
        inputs = prefill_inputs(rank.device, cache_config, bool(shape.windowed))
    owner = resources.owner(rank.device, rank.shard.rank, rank.shard.ranks)
    for plan in plan_memory(rank.device, shape.bytes(what.dtype), staging, weights, activations, inputs):
        resources.ledger.claim(owner, plan)


def load(rank: Rank, what: Build, memory: MemoryBudget) -> None:
    """Work: load the rank's share of the weights, and allocate its pools."""
    rank.held[PARTS] = load_parts(
        what.checkpoint,
        what.settings,
        memory,
        rank.device,
        what.dtype,
        what.budget,
        rank.held["resources"],
        rank.group,
        what.keeps_fp8,
    )


def assemble(rank: Rank) -> CacheWorker:
    """Work: agree on kernels and, on CUDA, capture graphs, in which ranks exchange what they compute."""
    parts: Parts = rank.held.pop(PARTS)
    worker = worker_of_parts(parts, rank.group)
    rank.held[PLACE] = worker
    return worker


def build_worker(
    checkpoint: Path,
    settings: CacheSettings,
    memory: MemoryBudget,
    device: torch.device,
    dtype: torch.dtype,
    prefill_token_budget: int,
    group: Group | None = None,
    keeps_fp8: bool = False,
) -> CacheWorker:
    """Build a worker from settings that leave nothing to choose, where there is no server."""
    parts = load_parts(
        checkpoint, settings, memory, device, dtype, prefill_token_budget, None, group, keeps_fp8
    )
    return worker_of_parts(parts, group)
