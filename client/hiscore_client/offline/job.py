"""A job: its task, which determines the output, and its run options, which do not."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hiscore_client.errors import InvalidRequest

Format = Literal["parquet", "jsonl"]


@dataclass(frozen=True)
class Task:
    """The settings that determine the output, besides input and model; a resumed run must have the same.

    Args:
        query_column: Input column of the queries.
        items_column: Input column of the items: a list of strings, or one string.
        id_column: Input column that is repeated in the output; None: none.
        rows_per_shard: Rows of one output file.

    Raises:
        InvalidRequest: ``rows_per_shard`` is below 1.
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
    adapter: str = ""
    log_scores: bool = False
    normalize: str = "none"

    def __post_init__(self) -> None:
        at_least(1, rows_per_shard=self.rows_per_shard)


@dataclass(frozen=True)
class RunOptions:
    """The settings of the work itself; a resumed run may change all of them.

    Args:
        urls: host:port of each server.
        in_flight: Concurrent calls of each worker.
        timeout: Seconds for one call; None: no limit.
        server_timeout: Seconds that a row waits for a server that can take it before the job ends.

    Raises:
        InvalidRequest: A value out of bounds.
    """

    urls: tuple[str, ...]
    workers: int = 2
    in_flight: int = 16
    timeout: float | None = None
    server_timeout: float = 600.0
    max_errors: int = 100

    def __post_init__(self) -> None:
        at_least(1, url=len(self.urls), workers=self.workers, in_flight=self.in_flight)
        at_least(0, server_timeout=self.server_timeout, max_errors=self.max_errors)


@dataclass(frozen=True)
class Job:
    """One run of a task.

    Args:
        inputs: Input files, in the order of their rows.
        output: Directory that all workers can reach.
    """

    inputs: tuple[Path, ...]
    output: Path
    task: Task
    options: RunOptions


def at_least(bound: int, **values: float) -> None:
    """Check that each named value is a finite number of at least ``bound``.

    Raises:
        InvalidRequest: It is not; the message names it.
    """
    for name, value in values.items():
        if not (math.isfinite(value) and value >= bound):
            raise InvalidRequest(f"'{name}' is {value}: must be finite and at least {bound}")
