"""DeepSeek-V3.2 cut to some layers, on some ranks: its settings, what fits, and what a sequence takes."""

from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import torch

from hiscore.decoding.memory.model_sizes import read_shape, share_in
from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.parallel.rank import Leader
from hiscore.parallel.shard import WHOLE, Shard
from hiscore.settings import CacheSettings
from perf.decoding.arms import PLENTY, Arm, dtype
from perf.decoding.closed_loop import ClosedLoop
from perf.decoding.layer_times import DENSE, LAYERS
from perf.models import random_checkpoint
from perf.models.geometries import with_layers

GIB = 2**30
LENGTH = 32_768
"""Of the sequence whose bytes are counted."""


@dataclass(frozen=True)
class Setup:
    """What is measured on what."""

    config: dict[str, Any]
    leader: Leader
    directory: Path
    settings: dict[str, Any]
    """Of the cache, for all arms."""
    load: ClosedLoop
    prefill_tokens: int | None

    @property
    def context(self) -> int:
        return -(-(self.load.prompt + self.load.tokens) // 32) * 32

    @property
    def memory(self) -> MemoryBudget:
        return MemoryBudget(PLENTY, PLENTY, self.load.at_once)

    def checkpoint(self, dense: int, routed: int) -> Path:
        """A directory with the config.json of so many layers."""
        config = with_layers(self.config, dense, routed)
        return random_checkpoint.save_config(config, self.directory / f"{dense}-{routed}")

    def arm(self, backup: str, left_out: str = "") -> Arm:
        name = f"{backup}, no {left_out}" if left_out else backup
        blocking = backup == "blocking"
        ring = {"backup_ring": 1} if blocking else {}
        return Arm(name, {"max_context": self.context, **ring, **self.settings}, left_out, blocking=blocking)


def routed_that_fit(setup: Setup, spare_gib: float) -> int:
    """Layers with experts for which a rank's device has room, beside those without and `spare_gib`."""
    checkpoint, ranks = setup.checkpoint(DENSE, 1), setup.leader.rank.shard.ranks
    config = with_layers(setup.config, DENSE, 1)
    share = share_in(checkpoint, Shard(0, ranks))
    shapes = random_checkpoint.tensors(config)
    in_fp8 = random_checkpoint.scales(config, shapes)
    sizes = {
        name: share(name) * prod(shape) * (1 if f"{name}_scale_inv" in in_fp8 else 2)
        for name, shape in shapes.items()
    }
    layer = sum(size for name, size in sizes.items() if name.startswith(f"model.layers.{DENSE}."))
    rest = sum(sizes.values()) - layer
    free, _ = torch.cuda.mem_get_info()
    return min(LAYERS - DENSE, int((free - spare_gib * GIB - rest) // layer))


def sequence_bytes(setup: Setup) -> dict[str, Any]:
    """Bytes of one sequence of `LENGTH` tokens in all 61 layers, on the host and on a device, by tensor."""
    checkpoint = setup.checkpoint(DENSE, LAYERS - DENSE)
    settings = CacheSettings(max_context=LENGTH, **setup.settings)
    model, _ = read_shape(checkpoint, settings, WHOLE)
    shape, _ = plan_cache(settings, model, MemoryBudget(PLENTY, PLENTY, 1), dtype(), 1)
    sizes = replace(shape, host_pages=LENGTH, device_pages=shape.buffer_pages).bytes(dtype())
    host = sizes.pop("host_kv")
    of_sequence = ("buffer", "index", "device_page_of", "host_page_of", "last_use")
    device_bytes = {name: sizes[name] for name in of_sequence}
    return {"tokens": LENGTH, "host": host, "device": sum(device_bytes.values()), "by_tensor": device_bytes}
