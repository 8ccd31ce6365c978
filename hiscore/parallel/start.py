"""Starting ranks: the steps that the first one and the others do alike."""

import gc
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import torch

from hiscore.logs import LogFormat, configure_model
from hiscore.parallel.rank import Rank
from hiscore.parallel.shard import Shard
from hiscore.server.host import usable_cores

Loaded = TypeVar("Loaded")


def use(device: torch.device, processes: int) -> None:
    """Make a device the current one; on the CPU, take a process's share of the usable cores."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        torch.set_num_threads(max(min(torch.get_num_threads(), usable_cores()) // processes, 1))


def load_on(device: torch.device, load: Callable[[], Loaded]) -> Loaded:
    """Load something; for the CPU, on a thread that ends with it.

    Each thread that has computed there keeps OpenMP's workers, one for each core but its own. When there are more
    of them than cores, those of the thread that serves no longer spin between two operations, but sleep: calls
    took 1.4 times as long (perf/results/notebook/cpu.md).
    """
    if device.type != "cpu":
        return load()
    # A new thread takes over the number of OpenMP's threads only when torch is asked for it.
    with ThreadPoolExecutor(1, initializer=torch.get_num_threads) as thread:
        return thread.submit(load).result()


def devices_of(first: torch.device, ranks: int, visible: int) -> list[torch.device]:
    """The devices of an instance's ranks: its own and those after it, which no other instance has.

    Raises:
        ValueError: Another instance would have some of them, too, or there are not so many.
    """
    if first.type != "cuda":
        return [first] * ranks
    index = first.index or 0
    if index % ranks or index + ranks > visible:
        raise ValueError(
            f"TENSOR_PARALLEL is {ranks}: an instance cannot begin at {first} of {visible} visible GPUs"
        )
    return [torch.device("cuda", index + rank) for rank in range(ranks)]


def log_as(rank: Rank, log_format: LogFormat, model: str) -> None:
    """Work: log like the model's first rank."""
    if rank.shard.rank:
        configure_model(log_format, f"{model} rank {rank.shard.rank}")


def freeze(rank: Rank) -> None:
    """Work: exclude what there is after a start from garbage collection, which would hold up requests."""
    gc.collect()
    gc.freeze()


def thaw() -> None:
    """Free the memory of a model that is being unloaded, on the host and on its device."""
    # Libraries would report frozen objects as leaks at exit.
    gc.unfreeze()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def store_path(store: int) -> str:
    """The file in memory in which ranks find each other, by its descriptor; it is gone when nobody has it open."""
    return f"/proc/self/fd/{store}"


def spawn(
    shard: Shard, device: torch.device, store: int, channel: int, heartbeat: int
) -> subprocess.Popen[bytes]:
    """Start a rank's process, in the process group of this one, with its ends of the file descriptors."""
    numbers = os.getpid(), shard.rank, shard.ranks, device, store, channel, heartbeat
    return subprocess.Popen(
        [interpreter(), "-m", "hiscore.parallel.follower", *map(str, numbers)],
        # Whatever this process can import, such as what is only on the path of a model of Triton.
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdin=subprocess.DEVNULL,
        pass_fds=[store, channel, heartbeat],
    )


def interpreter() -> str:
    """The Python of this process. Embedded in Triton's stub, it is the first on PATH (`launcher.distribution`)."""
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    return shutil.which("python3") or "python3"
