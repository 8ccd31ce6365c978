"""The job: shards through a Ray Data pipeline, one task each, in whatever order they get done."""

import json
import logging
import pickle
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hiscore_client.errors import HiscoreError, InvalidRequest
from hiscore_client.offline.cluster import connected
from hiscore_client.offline.job import Effort, Job, Task
from hiscore_client.offline.manifest import Manifest
from hiscore_client.offline.output import begin, finish, hold
from hiscore_client.offline.plan import FileScan, Shard, plan
from hiscore_client.offline.shard import Done, failure, score_shard
from hiscore_client.offline.source import find_files, scan

# Each block of Ray Data is a task. Beyond so many, tasks get several shards.
MOST_BLOCKS = 10_000
SCAN_THREADS = 8

Score = Callable[[Job, list[Shard]], Generator[Done, None, None]]


@dataclass(frozen=True)
class Summary:
    """rows in the output, of these with an error; rows_found: those of earlier runs."""

    rows: int = 0
    errors: int = 0
    rows_found: int = 0
    shards: int = 0


def run(
    source: Path,
    output: Path,
    task: Task,
    effort: Effort,
    ray_address: str | None = None,
    on_progress: Callable[[Summary, int], None] = lambda done, total: None,
    score: Score | None = None,
) -> Summary:
    """Score all rows of a file or directory into the parts of an output directory; go on where a run ended.

    on_progress: called with what is done and the number of all rows. score: instead of Ray Data.

    Raises:
        InvalidRequest: the input cannot be read, or the output belongs to another job or is in use.
        Overloaded, ServerUnreachable: no server took a row for as long as the patience; resume later.
        HiscoreError: more rows failed than may.
    """
    source, output = source.resolve(), output.resolve()
    files = find_files(source)
    if output == source or (source.is_dir() and output.is_relative_to(source)):
        raise InvalidRequest("the output must lie outside of the input")
    scans = scan_all(source, files, task)
    shards, total = plan(scans, task.rows_per_shard), sum(file.rows for file in scans)
    job = Job(files, output, task, effort)
    try:
        with hold(output):
            begin(output, Manifest(task, tuple(scans)))
            with closing((score or by_ray(ray_address))(job, shards)) as done:
                summary = add_up(done, effort.max_errors, lambda so_far: on_progress(so_far, total))
            if (summary.shards, summary.rows) != (len(shards), total):
                raise HiscoreError(f"{summary.rows} of {total} rows were scored: resume to score the rest")
            finish(output, json.dumps(asdict(summary)))
    except OSError as error:
        raise failure(error) from None
    return summary


def scan_all(source: Path, files: Iterable[Path], task: Task) -> list[FileScan]:
    """Read all files once, several at a time; they are called what they are called below the source."""

    def name(file: Path) -> str:
        return file.relative_to(source).as_posix() if file != source else file.name

    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        return list(pool.map(lambda file: scan(file, name(file), task), files))


def add_up(dones: Iterable[Done], max_errors: int, on_progress: Callable[[Summary], None]) -> Summary:
    """Sum up shards as they get done.

    Raises:
        HiscoreError: more rows failed than may.
    """
    sum_ = Summary()
    first = ""
    for done in dones:
        first = first or done.error
        sum_ = Summary(
            sum_.rows + done.rows,
            sum_.errors + done.errors,
            sum_.rows_found + done.rows * done.found,
            sum_.shards + 1,
        )
        on_progress(sum_)
        if sum_.errors > max_errors:
            raise HiscoreError(
                f"{sum_.errors} rows have failed, more than the {max_errors} that may"
                + (f"; the first of this run: {first}" if first else "")
            )
    return sum_


def by_ray(address: str | None) -> Score:
    """Score shards on a Ray cluster; None: on this machine."""

    def score(job: Job, shards: list[Shard]) -> Generator[Done, None, None]:
        if not shards:
            return
        with connected(address, job.effort.workers):
            import ray.data

            for noisy in ("ray.data", "ray"):
                logging.getLogger(noisy).setLevel(logging.ERROR)
            ray.data.DataContext.get_current().enable_progress_bars = False
            rows = ray.data.from_items(
                [asdict(shard) for shard in shards], override_num_blocks=min(len(shards), MOST_BLOCKS)
            )
            dones = rows.map(
                _score_row,
                fn_kwargs={"job": job},
                compute=ray.data.TaskPoolStrategy(size=job.effort.workers),
                num_cpus=1,
            )
            for row in dones.iter_rows():
                outcome: Done | HiscoreError = pickle.loads(row["outcome"])
                if isinstance(outcome, HiscoreError):
                    raise outcome
                yield outcome

    return score


def _score_row(row: dict[str, Any], job: Job) -> dict[str, bytes]:
    # What ends the job is handed over as a value: Ray would wrap it, and write its traceback to the log.
    outcome: Done | HiscoreError
    try:
        outcome = score_shard(job, Shard(**row))
    except (HiscoreError, OSError) as error:
        outcome = failure(error)
    return {"outcome": pickle.dumps(outcome)}
