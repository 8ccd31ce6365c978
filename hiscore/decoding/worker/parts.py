"""The parts of a worker, which each rank loads and allocates by itself, and the worker that is made of it."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from hiscore.attention.base import AttentionShape
from hiscore.attention.flashinfer_prefill import FlashInferAttention, choose_prefill_attention
from hiscore.attention.flashinfer_rows import MIN_ROWS
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.memory.model_shape import ModelShape, caches_prefixes
from hiscore.decoding.memory.model_sizes import is_latent, read_shape
from hiscore.decoding.memory.plan import paged_sizes
from hiscore.decoding.memory.pool_report import report_pools
from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.decoding.models.base import DecodeModel
from hiscore.decoding.models.gqa import GroupedModel
from hiscore.decoding.models.mla import LatentModel
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.device_queues import CudaQueues, DeviceQueues
from hiscore.decoding.worker.offload_schedule import OffloadSchedule
from hiscore.decoding.worker.step_runner import StepRunner
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.models.config import Architecture
from hiscore.models.decoder import Decoder
from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.parallel.group import Group
from hiscore.parallel.rank import Rank
from hiscore.parallel.shard import Shard
from hiscore.server.server_resources import ServerResources
from hiscore.settings import CacheSettings

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PlannedCache:
    """A rank's share of a checkpoint, and the cache for it."""

    model: ModelShape
    architecture: Architecture | DsaArchitecture
    shape: CacheShape
    config: CacheConfig


@dataclass(frozen=True)
class Build:
    """Parameters of the build on each rank; `budget` is the tokens of one prefill forward at most."""

    settings: CacheSettings
    checkpoint: Path
    dtype: torch.dtype
    budget: int
    keeps_fp8: bool = False

    def plan(self, memory: MemoryBudget, shard: Shard) -> PlannedCache:
        model, architecture = read_shape(self.checkpoint, self.settings, shard)
        shape, config = plan_cache(self.settings, model, memory, self.dtype, self.budget)
        return PlannedCache(model, architecture, shape, config)


@dataclass(frozen=True)
class Parts:
    """Parts of one rank; ranks may exchange something while `make_model` makes the model."""

    cache: KVCache
    cache_config: CacheConfig
    settings: CacheSettings
    attention: AttentionShape
    value_dim: int | None
    make_model: Callable[[Group], DecodeModel]


@torch.inference_mode()
def load_parts(what: Build, memory: MemoryBudget, rank: Rank, resources: ServerResources) -> Parts:
    """Load a rank's share of a checkpoint and allocate its cache. Ranks exchange nothing meanwhile."""
    checkpoint, settings, dtype = what.checkpoint, what.settings, what.dtype
    device, group = rank.device, rank.group
    planned = what.plan(memory, rank.shard)
    shape, cache_config = planned.shape, planned.config
    staging = cache_config.staging_pages * STAGING_PAGE_SIZE
    report_pools(shape, cache_config, dtype)
    caching, why = caches_prefixes(settings, planned.model)
    ignored = settings.prefix_cache is True and not caching
    level = logging.WARNING if ignored else logging.INFO
    log.log(level, "the prefix cache of decode is %s: %s", "on" if caching else "off", why)
    if is_latent(checkpoint):
        # The scorer has the same weights, on a CPU.
        shared = resources.weights if device.type == "cpu" else None
        latent = DsaDecoder(checkpoint, device, dtype, settings.max_context, what.keeps_fp8, group, shared)
        latent.after_layer = resources.progress
        cache = KVCache.allocate(shape, dtype, device, group)

        def make_latent(group: Group) -> DecodeModel:
            return LatentModel(latent, cache, staging)

        value_dim = latent.architecture.latent_rank
        return Parts(cache, cache_config, settings, latent.attention_shape, value_dim, make_latent)
    context = planned.model.context_length
    grouped = Decoder(checkpoint, device, dtype, False, context, resources.weights, group)
    grouped.after_layer = resources.progress
    cache = KVCache.allocate(shape, dtype, device)
    sizes = paged_sizes(cache_config)
    found = choose_prefill_attention(grouped.attention_shape, dtype, device, sizes)

    def make_grouped(group: Group) -> DecodeModel:
        return GroupedModel(grouped, cache, staging, cache_config, agree_on(found, group, device))

    return Parts(cache, cache_config, settings, grouped.attention_shape, None, make_grouped)


@torch.inference_mode()
def worker_of_parts(parts: Parts, group: Group) -> CacheWorker:
    """Make a worker and, on CUDA, capture its graphs. Ranks exchange what they compute."""
    cache_config, settings = parts.cache_config, parts.settings
    model = parts.make_model(group)
    queues, runner = _make_runner(model, parts.attention, parts.value_dim, cache_config)
    schedule = OffloadSchedule(settings.backup_ring, cache_config.max_sequences, cache_config.prompt_pages)
    return CacheWorker(model, runner, queues, schedule, cache_config, follows=group.shard.rank > 0)


def agree_on(
    paged_attention: FlashInferAttention | None, group: Group, device: torch.device
) -> FlashInferAttention | None:
    """Agree on kernels of prefill for all ranks: FlashInfer where each rank can use it; None: our own kernel."""
    shard = group.shard
    lacking = torch.zeros(2, shard.ranks, device=device)
    lacking[0, shard.rank] = paged_attention is None
    lacking[1, shard.rank] = paged_attention is None or paged_attention.over_rows(MIN_ROWS) is None
    without, over_pages = (each.nonzero().flatten().tolist() for each in group.sum(lacking))
    if paged_attention is None:
        return None
    if without:
        log.info(
            "prompts are prefilled by our own kernel and not by FlashInfer, which some of the %d ranks cannot "
            "use: %s", shard.ranks, ", ".join(f"rank {rank}" for rank in without),
        )  # fmt: skip
        return None
    log.info("prompts are prefilled by FlashInfer's FlashAttention 3")
    if over_pages:  # graphs of all ranks wait for each other
        paged_attention.drop_rows()
    return paged_attention


def _make_runner(
    model: DecodeModel, attention: AttentionShape, value_dim: int | None, cache_config: CacheConfig
) -> tuple[DeviceQueues, StepRunner]:
    if model.staging.device.type != "cuda":
        ops = CacheOps(model.cache, attention, value_dim)
        return DeviceQueues(), StepRunner(model, ops, cache_config.max_sequences)
    from hiscore.decoding.worker.cuda_graphs import GraphRunner

    queues = CudaQueues(model.staging.device)
    return queues, GraphRunner(model, attention, value_dim, cache_config, queues)
