"""Resources that a model shares with the rest of its server."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hiscore.server.ledger import Ledger
from hiscore.server.plan import MemoryLine
from hiscore.server.progress import Advance, Progress, no_progress
from hiscore.server.shared_weights import SharedWeights

SHARERS = ("scorer", "decode")
"""Models with the same weights, if they compute with the same numbers."""


@dataclass(frozen=True)
class Instance:
    """Place of one instance among a model's: the device, and the number among instances on the same device."""

    device: str = "cpu"
    number: int = 0
    of: int = 1

    @property
    def name(self) -> str:
        return self.device if self.of == 1 else f"{self.device}:{self.number}"


@dataclass(frozen=True)
class ServerResources:
    """Resources that a model shares with its server; by default those of a model that is alone.

    `progress` is called after each layer that is computed on the CPU; `weights` loads common weights once.
    """

    ledger: Ledger = field(default_factory=Ledger)
    progress: Advance = no_progress
    weights: SharedWeights = field(default_factory=SharedWeights)
    place: tuple[Path, str, int, Instance] | None = None
    """Directory, model, process id of the server, and instance; None: there is no server."""
    instance: Instance = Instance()

    def __reduce__(self) -> tuple[Any, ...]:
        # On another rank these are of the same server, by a counter and maps of that process.
        return (ServerResources.in_server, self.place) if self.place else (ServerResources, ())

    def weights_line(self, size: int, key: str) -> MemoryLine:
        """The line of a memory plan for weights of some bytes, which other models may have under the same key."""
        return MemoryLine("weights", size, shared=f"weights {key}" if self.weights.shares else "")

    def owner(self, model: str, device: object, rank: int = 0, ranks: int = 1) -> str:
        """Owner of the memory that a rank of this instance claims."""
        number = f" instance {self.instance.number}" if self.instance.of > 1 else ""
        return f"{model} on {device}{number}" + (f" rank {rank}" if ranks > 1 else "")

    def close(self) -> None:
        self.weights.close()

    @classmethod
    def in_server(
        cls, directory: Path, model: str, server: int | None = None, instance: Instance = Instance()
    ) -> "ServerResources":
        """Make the resources that a model shares with its server.

        `server` is the server's process id; None: this process is its child.
        """
        server = os.getppid() if server is None else server
        both = all((directory / "models" / name).is_dir() for name in SHARERS)
        shared = SharedWeights(directory if both else None, server)
        progress = Progress(directory, model).advance
        place = directory, model, server, instance
        return cls(Ledger(directory, server), progress, shared, place, instance)
