"""What a model shares with the rest of its server."""

from dataclasses import dataclass, field
from pathlib import Path

from hiscore.memory.ledger import Ledger
from hiscore.memory.plan import MemoryLine
from hiscore.models.shared_weights import SharedWeights
from hiscore.progress import Advance, Progress, no_progress

SHARERS = ("scorer", "decode")
"""Models with the same weights, if they compute with the same numbers."""


@dataclass(frozen=True)
class Site:
    """By default that of a model that is alone.

    Attributes:
        ledger: Where the models claim memory.
        progress: Called after each layer that is computed on the CPU.
        weights: Loads those that several models use once.
    """

    ledger: Ledger = field(default_factory=Ledger)
    progress: Advance = no_progress
    weights: SharedWeights = field(default_factory=SharedWeights)

    def weights_line(self, size: int, key: str) -> MemoryLine:
        """The line of a memory plan for weights of some bytes, which other models may have under the same key."""
        return MemoryLine("weights", size, shared=f"weights {key}" if self.weights.shares else "")

    @classmethod
    def in_server(cls, directory: Path, model: str) -> "Site":
        """The site of a server's model.

        Args:
            directory: The server's own.
            model: Its name.
        """
        both = all((directory / "models" / name).is_dir() for name in SHARERS)
        shared = SharedWeights(directory if both else None)
        return cls(Ledger(directory), Progress(directory, model).advance, shared)
