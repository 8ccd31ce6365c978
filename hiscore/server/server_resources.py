"""Resources that a model shares with the rest of its server."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hiscore.server.ledger import Ledger
from hiscore.server.plan import MemoryLine
from hiscore.server.progress import Advance, Progress, no_progress
from hiscore.server.shared_weights import SharedWeights

SHARERS = ("scorer", "decode")
"""Beginnings of the names of models that have the same weights, if they compute with the same numbers."""


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
    place: tuple[Path, str, int, Instance, bool, int] | None = None
    """Arguments of `in_server`; None: there is no server."""
    instance: Instance = Instance()
    model: str = "model"

    def __reduce__(self) -> tuple[Any, ...]:
        # On another rank these are of the same server, by a counter and maps of that process.
        return (ServerResources.in_server, self.place) if self.place else (ServerResources, ())

    def weights_line(self, size: int, key: str) -> MemoryLine:
        """The line of a memory plan for weights of some bytes, which other models may have under the same key."""
        return MemoryLine("weights", size, shared=f"weights {key}" if self.weights.shares else "")

    def owner(self, device: object, rank: int = 0, ranks: int = 1) -> str:
        """Owner of the memory that a rank of this instance claims."""
        number = f" instance {self.instance.number}" if self.instance.of > 1 else ""
        return f"{self.model} on {device}{number}" + (f" rank {rank}" if ranks > 1 else "")

    def close(self) -> None:
        """Give back what was claimed, and wait for others that compute with weights of this process."""
        # Others that have the weights claim them, too.
        self.ledger.release()
        self.weights.close()

    @classmethod
    def in_server(
        cls, directory: Path, model: str, server: int, instance: Instance, shares: bool, process: int
    ) -> "ServerResources":
        """Make the resources that a model shares with its server.

        Args:
            directory: The server's run directory.
            server: The server's process id.
            shares: Other models may compute with the same weights; alone, this one would only copy its own.
            process: The process id of the instance's first rank.
        """
        weights = SharedWeights(directory if shares else None, server)
        progress = Progress(directory, model).advance
        place = directory, model, server, instance, shares, process
        return cls(Ledger(directory, server, process), progress, weights, place, instance, model)


def has_sharers(model_directory: Path) -> bool:
    """Tell whether a repository has other models that may compute with this one's weights."""
    return any(
        (other / "config.pbtxt").is_file() and other.name.startswith(SHARERS)
        for other in model_directory.parent.iterdir()
        if other.name != model_directory.name
    )
