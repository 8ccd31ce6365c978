"""Build a worker on a device from settings and a checkpoint."""

import json
import logging
import os
from pathlib import Path

import torch

from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.kv_cache.sizing import MemoryBudget, ModelShape, plan_cache
from hiscore.decoding.models.base import DecodeModel
from hiscore.decoding.models.gqa import GroupedModel
from hiscore.decoding.models.mla import LatentModel
from hiscore.decoding.sparse.torch_cache_ops import TorchCacheOps
from hiscore.decoding.worker.device_queues import DeviceQueues, ImmediateQueues
from hiscore.decoding.worker.interface import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.worker.offload_schedule import OffloadSchedule
from hiscore.decoding.worker.step_runner import EagerRunner, StepRunner
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.models.decoder import Decoder
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.families import DSA_FAMILIES
from hiscore.settings import CacheSettings, DecodeSettings

log = logging.getLogger(__name__)

# Tokens of a prefill forward: running sequences may have to wait for one such forward between two tokens.
PREFILL_TOKEN_BUDGET = {"cpu": 256, "cuda": 2_048}
# Default of MAX_STREAMS.
MAX_SEQUENCES = {"cpu": 32, "cuda": 64}
# Defaults of HOST_KV_BYTES and DEVICE_KV_BYTES, as shares of the free host memory and of all device memory: the
# scorer's weights and pools are on the same device.
HOST_SHARE, DEVICE_SHARE = 0.25, 0.25
# On a CPU, memory that is never written is never taken, so the free memory is no reason to go below this.
MIN_CPU_BYTES = 2**30
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def make_worker(settings: DecodeSettings, device: str) -> CacheWorker:
    """Load the checkpoint and allocate the pools.

    Raises:
        ValueError: A setting does not fit the device or the checkpoint; the message names it.
    """
    where = torch.device(device)
    if where.type == "cuda":
        torch.cuda.set_device(where)
    dtype = settings.dtype
    if dtype == "auto":
        dtype = "bfloat16" if where.type == "cuda" else "float32"
    if dtype == "fp8":
        log.warning("fp8 is supported by the scorer only: decode computes in bfloat16")
        dtype = "bfloat16"
    memory = MemoryBudget(
        settings.host_kv_bytes or _host_bytes(where),
        settings.device_kv_bytes or _device_bytes(where),
        settings.max_streams or MAX_SEQUENCES[where.type],
    )
    budget = PREFILL_TOKEN_BUDGET[where.type]
    return build_worker(Path(settings.checkpoint), settings, memory, where, DTYPES[dtype], budget)


@torch.inference_mode()
def build_worker(
    checkpoint: Path,
    settings: CacheSettings,
    memory: MemoryBudget,
    device: torch.device,
    dtype: torch.dtype,
    prefill_token_budget: int,
) -> CacheWorker:
    """Build a worker from settings that leave nothing to choose.

    Args:
        checkpoint: A directory.
        settings: With a selector that the checkpoint has.
        memory: Bytes of the pools.
        device: The device.
        dtype: Of weights, keys and values.
        prefill_token_budget: Tokens of one prefill forward at most.
    """
    family = json.loads((checkpoint / "config.json").read_text())["model_type"]
    if family in DSA_FAMILIES:
        latent = DsaDecoder(checkpoint, device, dtype, settings.max_context)
        shape, cache_config = plan_cache(settings, _latent_shape(latent), memory, dtype, prefill_token_budget)
        cache = _allocate(shape, dtype, device)
        staging_tokens = cache_config.staging_pages * STAGING_PAGE_SIZE
        model: DecodeModel = LatentModel(latent, cache, staging_tokens)
        attention, value_dim = latent.attention_shape, latent.architecture.latent_rank
    else:
        grouped = Decoder(checkpoint, device, dtype, max_context=settings.max_context)
        shape, cache_config = plan_cache(
            settings, _grouped_shape(grouped), memory, dtype, prefill_token_budget
        )
        cache = _allocate(shape, dtype, device)
        staging_tokens = cache_config.staging_pages * STAGING_PAGE_SIZE
        model = GroupedModel(grouped, cache, staging_tokens, prefill_token_budget)
        attention, value_dim = grouped.attention_shape, None
    queues, runner = _make_runner(model, attention, value_dim, cache_config)
    schedule = OffloadSchedule(
        settings.backup, settings.backup_ring, cache_config.max_sequences, cache_config.staging_pages
    )
    return CacheWorker(model, runner, queues, schedule, cache_config)


def _make_runner(
    model: DecodeModel, attention: AttentionShape, value_dim: int | None, cache_config: CacheConfig
) -> tuple[DeviceQueues, StepRunner]:
    if model.staging.device.type != "cuda":
        ops = TorchCacheOps(model.cache, attention, value_dim)
        return ImmediateQueues(), EagerRunner(model, ops, cache_config.max_sequences)
    from hiscore.decoding.worker.cuda_graphs import GraphRunner
    from hiscore.decoding.worker.cuda_queues import CudaQueues

    queues = CudaQueues(model.staging.device)
    return queues, GraphRunner(model, attention, value_dim, cache_config, queues)


def _allocate(shape: CacheShape, dtype: torch.dtype, device: torch.device) -> KVCache:
    sizes = shape.bytes(dtype)
    log.info(
        "KV cache for %d sequences: %d tokens on the host in %d MiB, %d tokens in device buffers in %d MiB, "
        "%d MiB of dense layers, %d MiB of index",
        shape.max_sequences, shape.host_pages * shape.page_size, sizes["host_kv"] >> 20,
        shape.device_pages * shape.page_size, sizes["buffer"] >> 20, sizes["dense_kv"] >> 20, sizes["index"] >> 20,
    )  # fmt: skip
    return KVCache.allocate(shape, dtype, device)


def _grouped_shape(decoder: Decoder) -> ModelShape:
    a = decoder.architecture
    return ModelShape(a.kv_heads, 2, a.head_dim, a.windows, a.context_length)


def _latent_shape(decoder: DsaDecoder) -> ModelShape:
    a = decoder.architecture
    windows = (None,) * a.layers
    sharing = frozenset(layer for layer, own in enumerate(a.own_index) if not own)
    return ModelShape(
        1, 1, a.row_dim, windows, a.context_length, a.indexer.head_dim, a.indexer.top_k, sharing
    )


def _host_bytes(device: torch.device) -> int:
    share = int(HOST_SHARE * _free_host_bytes())
    # With a GPU the pool is pinned: all of it is allocated at once.
    return share if device.type == "cuda" else max(share, MIN_CPU_BYTES)


def _device_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(DEVICE_SHARE * torch.cuda.get_device_properties(device).total_memory)
    return _host_bytes(device)


def _free_host_bytes() -> int:
    """Memory that Linux can give without swapping."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
