"""Workers to compare: what each is built with, and what it leaves out."""

import gc
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from hiscore.decoding.memory.sizing import MemoryBudget
from hiscore.decoding.sparse.selectors import QUEST_DENSE_LAYERS, SELECTORS
from hiscore.decoding.worker import parts
from hiscore.decoding.worker.build import prefill_token_budget
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.models.quantization.schemes import in_fp8
from hiscore.parallel.rank import Rank
from hiscore.server.server_resources import ServerResources
from hiscore.settings import CacheSettings
from perf.decoding.blocking_copies import BlockingCopies
from perf.models import random_checkpoint

PLENTY = 2**60


@dataclass(frozen=True)
class Arm:
    """One side of a comparison: settings of the cache, and work that is left out."""

    name: str
    settings: Mapping[str, Any]
    left_out: str = ""
    """`backup`: no copies to the host; `swap-in`: no copies back. Its tokens are wrong, its time is a floor."""
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """Request parameters; none: greedy."""
    dense_layers: int = QUEST_DENSE_LAYERS
    """The first layers that attend to everything under quest and auto."""
    blocking: bool = False
    """Let the host wait for each step before it launches the step's copy. Takes `backup_ring` 1."""


def device() -> torch.device:
    """The GPU if there is one."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


def dtype() -> torch.dtype:
    """The default of the device."""
    return torch.bfloat16 if torch.cuda.is_available() else torch.float32


@contextmanager
def shared_weights(drawn: bool = True) -> Iterator[None]:
    """Inside the context, workers built from the same checkpoint share their weights.

    Args:
        drawn: They are drawn in memory; else the checkpoint has them.
    """
    with ExitStack() as stack:
        if drawn:
            stack.enter_context(random_checkpoint.in_memory(device().type))
        for name in ("Decoder", "DsaDecoder"):
            stack.enter_context(mock.patch.object(parts, name, cache(getattr(parts, name))))
        yield


def build_worker(
    checkpoint: Path,
    arm: Arm,
    memory: MemoryBudget,
) -> CacheWorker:
    """Build a worker that leaves out what the arm leaves out. Weights that are stored in fp8 stay so.

    Raises:
        Unavailable: This machine cannot leave that out.
    """
    gc.collect()  # workers of other arms hold their memory until then
    where = device()
    config = json.loads((checkpoint / "config.json").read_text())
    with ExitStack() as stack:
        if arm.left_out == "swap-in":
            if where.type != "cuda":
                raise Unavailable("a swap-in can be left out on a CUDA device only")
            from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps

            # Patched while the CUDA graphs are captured.
            stack.enter_context(mock.patch.object(TritonCacheOps, "_swap_in", _nothing))
        kinds = {name: replace(SELECTORS[name], dense_layers=arm.dense_layers) for name in ("quest", "auto")}
        stack.enter_context(mock.patch.dict(SELECTORS, kinds))
        settings = CacheSettings(**{**defaults(config), **arm.settings})
        budget = prefill_token_budget(checkpoint, where)
        what = parts.Build(settings, checkpoint, dtype(), budget, keeps_fp8=in_fp8(config))
        rank = Rank(where)
        loaded = parts.load_parts(what, memory, rank, ServerResources())
        worker = parts.worker_of_parts(loaded, rank.group)
    if arm.blocking:
        worker._copies = BlockingCopies(worker._copies)
    if arm.left_out == "backup":
        setattr(worker._ops, "offload_step", _nothing)  # noqa: B010
    return worker


def defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of every arm that has no others: its checkpoint is written for its load, and loads are repeated.

    config: The checkpoint's.
    """
    return {"max_context": config["max_position_embeddings"], "prefix_cache": False}


def _nothing(*_: Any) -> None:
    """Does nothing, in place of a copy."""


class Unavailable(Exception):
    """This machine cannot measure an arm."""
