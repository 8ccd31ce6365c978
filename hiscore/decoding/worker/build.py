"""Build a worker on a device from settings and a checkpoint."""

import json
import logging
from pathlib import Path

import torch

from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.sizing import MemoryBudget, ModelShape, plan_cache, staging_token_bytes
from hiscore.decoding.models.base import DecodeModel
from hiscore.decoding.models.gqa import GroupedModel
from hiscore.decoding.models.mla import CUDA_ELEMENTS, LatentModel
from hiscore.decoding.sparse.torch_cache_ops import TorchCacheOps
from hiscore.decoding.worker.device_queues import DeviceQueues, ImmediateQueues
from hiscore.decoding.worker.interface import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.worker.memory import memory_budget, plan_memory, report_streams
from hiscore.decoding.worker.offload_schedule import OffloadSchedule
from hiscore.decoding.worker.step_runner import EagerRunner, StepRunner
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.models.activations import activation_bytes
from hiscore.models.config import Architecture, read_architecture
from hiscore.models.decoder import Decoder, weights_key
from hiscore.models.deepseek.config import DsaArchitecture
from hiscore.models.deepseek.config import read_architecture as read_latent_architecture
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import MAX_ELEMENTS
from hiscore.models.families import DSA_FAMILIES
from hiscore.models.site import Site
from hiscore.models.weight_bytes import weight_bytes
from hiscore.progress import no_progress
from hiscore.settings import CacheSettings, DecodeSettings

log = logging.getLogger(__name__)

# Tokens of a prefill forward: running sequences may have to wait for one such forward between two tokens.
PREFILL_TOKEN_BUDGET = {"cpu": 256, "cuda": 2_048}
# Tensors of the size of a step's logits at once: sampling sorts and masks them.
LOGITS_ALIVE = 4
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def make_worker(settings: DecodeSettings, device: str, site: Site) -> CacheWorker:
    """Plan the memory, load the checkpoint and allocate the pools.

    Args:
        settings: Of the model.
        device: Where it computes.
        site: Of the server's model.

    Raises:
        MemoryExceeded: There is no room for it.
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
    budget = PREFILL_TOKEN_BUDGET[where.type]
    weights = weight_bytes(Path(settings.checkpoint), DTYPES[dtype].itemsize)
    memory = memory_budget(settings, where, weights, site.ledger)
    return build_worker(Path(settings.checkpoint), settings, memory, where, DTYPES[dtype], budget, site)


@torch.inference_mode()
def build_worker(
    checkpoint: Path,
    settings: CacheSettings,
    memory: MemoryBudget,
    device: torch.device,
    dtype: torch.dtype,
    prefill_token_budget: int,
    site: Site | None = None,
) -> CacheWorker:
    """Build a worker from settings that leave nothing to choose.

    Args:
        checkpoint: A directory.
        settings: With a selector that the checkpoint has.
        memory: Bytes of the pools.
        device: The device.
        dtype: Of weights, keys and values.
        prefill_token_budget: Tokens of one prefill forward at most.
        site: Of the server's model; None: there is no server, and memory enough.
    """
    model_shape, architecture = _read_shape(checkpoint, settings.max_context)
    shape, cache_config = plan_cache(settings, model_shape, memory, dtype, prefill_token_budget)
    staging_tokens = cache_config.staging_pages * STAGING_PAGE_SIZE
    staging = staging_tokens * staging_token_bytes(model_shape, dtype)
    report_streams(shape, cache_config, shape.bytes(dtype), staging)
    if site:
        size = weight_bytes(checkpoint, dtype.itemsize)
        weights = site.weights_line(size, weights_key(device, dtype))
        activations = _activation_bytes(
            architecture, prefill_token_budget, memory.max_sequences, dtype.itemsize, device.type == "cuda"
        )
        for plan in plan_memory(device, shape.bytes(dtype), staging, weights, activations):
            site.ledger.claim(f"decode on {device}", plan)
    if _is_latent(checkpoint):
        latent = DsaDecoder(checkpoint, device, dtype, settings.max_context)
        latent.after_layer = site.progress if site else no_progress
        cache = KVCache.allocate(shape, dtype, device)
        model: DecodeModel = LatentModel(latent, cache, staging_tokens)
        attention, value_dim = latent.attention_shape, latent.architecture.latent_rank
    else:
        grouped = Decoder(
            checkpoint, device, dtype, False, settings.max_context, site.weights if site else None
        )
        grouped.after_layer = site.progress if site else no_progress
        cache = KVCache.allocate(shape, dtype, device)
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


def _is_latent(checkpoint: Path) -> bool:
    return json.loads((checkpoint / "config.json").read_text())["model_type"] in DSA_FAMILIES


def _read_shape(
    checkpoint: Path, max_context: int | None
) -> tuple[ModelShape, Architecture | DsaArchitecture]:
    """What the cache must know of a checkpoint, and its architecture."""
    if _is_latent(checkpoint):
        latent, _ = read_latent_architecture(checkpoint, max_context)
        windows = (None,) * latent.layers
        sharing = frozenset(layer for layer, own in enumerate(latent.own_index) if not own)
        indexer = latent.indexer
        return ModelShape(
            1, 1, latent.row_dim, windows, latent.context_length, indexer.head_dim, indexer.top_k, sharing
        ), latent
    grouped, _ = read_architecture(checkpoint, max_context)
    return ModelShape(grouped.kv_heads, 2, grouped.head_dim, grouped.windows, grouped.context_length), grouped


def _activation_bytes(
    a: Architecture | DsaArchitecture, prefill_rows: int, step_rows: int, number_bytes: int, on_cuda: bool
) -> int:
    """The most that a prefill forward and the logits of a step take."""
    # With them a row of counts for each sequence, if penalties are asked for.
    logits = (LOGITS_ALIVE + 1) * 4 * step_rows * a.vocab_size
    if isinstance(a, Architecture):
        return activation_bytes(a, prefill_rows, number_bytes) + logits
    return 2 * 4 * (CUDA_ELEMENTS if on_cuda else MAX_ELEMENTS) + logits
