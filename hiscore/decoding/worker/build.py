"""Build a worker on a device from settings and a checkpoint."""

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch

from hiscore.decoding.interface.cache_config import SHARED_TOKENS
from hiscore.decoding.interface.worker import Worker
from hiscore.decoding.memory.model_sizes import bytes_of_rank, forward_bytes, is_latent
from hiscore.decoding.memory.plan import memory_budget, plan_memory, prefill_inputs, state_lines
from hiscore.decoding.memory.sizing import MemoryBudget
from hiscore.decoding.worker.parallel_worker import PLACE, ParallelWorker
from hiscore.decoding.worker.parts import Build, Parts, load_parts, worker_of_parts
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.layers.fp8 import FP8_CAPABILITY
from hiscore.models.config import read_architecture
from hiscore.models.decoder import weights_key
from hiscore.parallel.rank import Leader, Rank
from hiscore.server.server_resources import ServerResources
from hiscore.settings import DecodeSettings

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
    dtype = DTYPES.get(settings.dtype, torch.bfloat16 if where.type == "cuda" else torch.float32)
    keeps_fp8 = settings.dtype == "fp8" and is_latent(checkpoint)
    if settings.dtype == "fp8" and not keeps_fp8:
        log.warning("fp8 is supported by the scorer only: decode computes in 16 bits, on the CPU in 32")
    if keeps_fp8 and where.type == "cuda":
        found = torch.cuda.get_device_capability(where)
        if found < FP8_CAPABILITY:
            raise ValueError(f"DTYPE is fp8, which needs compute capability 8.9, but {where} has {found}")
    budget = prefill_token_budget(checkpoint, where)
    what = Build(settings, checkpoint, dtype, budget, keeps_fp8)
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
    planned = what.plan(memory, rank.shard)
    size = bytes_of_rank(what.checkpoint, what.dtype, what.keeps_fp8, rank.shard)
    weights = resources.weights_line(
        size, weights_key(what.checkpoint, rank.device, what.dtype, shard=rank.shard)
    )
    on_gpu = rank.device.type == "cuda"
    activations = forward_bytes(
        planned.architecture, what.budget, memory.max_sequences, what.dtype.itemsize, on_gpu,
        planned.shape.top_pages if on_gpu else None,
    )  # fmt: skip
    inputs = (0, 0)
    if not is_latent(what.checkpoint):
        inputs = prefill_inputs(rank.device, planned.config, bool(planned.shape.windowed))
    owner = resources.owner(rank.device, rank.shard.rank, rank.shard.ranks)
    states = state_lines(planned.model, planned.config, what.dtype.itemsize, on_gpu)
    sizes = planned.shape.bytes(what.dtype)
    staging = planned.shape.staging_bytes(planned.config.staging_pages, what.dtype)
    for plan in plan_memory(rank.device, sizes, staging, weights, activations, inputs, states):
        resources.ledger.claim(owner, plan)


def load(rank: Rank, what: Build, memory: MemoryBudget) -> None:
    """Work: load the rank's share of the weights, and allocate its pools."""
    rank.held[PARTS] = load_parts(what, memory, rank, rank.held["resources"])


def assemble(rank: Rank) -> CacheWorker:
    """Work: agree on kernels and, on CUDA, capture graphs, in which ranks exchange what they compute."""
    parts: Parts = rank.held.pop(PARTS)
    worker = worker_of_parts(parts, rank.group)
    rank.held[PLACE] = worker
    return worker
