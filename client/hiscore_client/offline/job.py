"""What a job is told: what to score and how, which decides the output; and how to go about it, which does not."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hiscore_client.errors import InvalidRequest

Format = Literal["parquet", "jsonl"]


@dataclass(frozen=True)
class Task:
    """All that decides an output row besides the input and the model; a resume must have the same.

    id_column: the input's column that is repeated in the output. rows_per_shard: rows of one output file.
    """

    query_column: str = "query"
    items_column: str = "items"
    id_column: str | None = None
    labels: tuple[str, ...] = ()
    label_token_ids: tuple[int, ...] = ()
    apply_softmax: bool = False
    temperature: float = 1.0
    item_first: bool = False
    rows_per_shard: int = 1_000
    output_format: Format = "parquet"

    def __post_init__(self) -> None:
        at_least(1, rows_per_shard=self.rows_per_shard)


@dataclass(frozen=True)
class Effort:
    """How the work is done; a resume may change all of it.

    in_flight: calls at once of each worker. timeout: seconds of one call (None: no limit). patience: seconds for
    which a row waits for a server that can take it, before the job ends. max_errors: rows that may fail.
    """

    urls: tuple[str, ...]
    workers: int = 2
    in_flight: int = 16
    timeout: float | None = None
    patience: float = 600.0
    max_errors: int = 100

    def __post_init__(self) -> None:
        at_least(1, url=len(self.urls), workers=self.workers, in_flight=self.in_flight)
        at_least(0, patience=self.patience, max_errors=self.max_errors)


@dataclass(frozen=True)
class Job:
    """One run. inputs: the input's files, in the order of their rows; output: a directory that all workers see."""

    inputs: tuple[Path, ...]
    output: Path
    task: Task
    effort: Effort


def at_least(bound: int, **values: float) -> None:
    """Refuse what is smaller, or no number, by its name."""
    for name, value in values.items():
        if not (math.isfinite(value) and value >= bound):
            raise InvalidRequest(f"'{name}' is {value}: must be finite and at least {bound}")
