"""Running a job: plan shards, score them, collect the results in any order."""

import json
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeAlias

from hiscore_client.errors import HiscoreError, InvalidRequest
from hiscore_client.offline.input_files import find_files, scan_file
from hiscore_client.offline.job import Job, RunOptions, Task
from hiscore_client.offline.manifest import Manifest
from hiscore_client.offline.output_directory import begin, exclusive, mark_complete
from hiscore_client.offline.ray_job import score_with_ray
from hiscore_client.offline.shards import FileScan, Shard, plan_shards
from hiscore_client.offline.worker import ShardResult, to_job_error

SCAN_THREADS = 8

ScoreShards: TypeAlias = Callable[[Job, list[Shard]], Generator[ShardResult, None, None]]


@dataclass(frozen=True)
class Summary:
    """Totals of a job.

    Args:
        rows: Rows in the output.
        errors: Of these, rows with an error.
        rows_found: Of these, rows that earlier runs had written.
        shards: Number of output files.
    """

    rows: int = 0
    errors: int = 0
    rows_found: int = 0
    shards: int = 0


def run(
    source: Path,
    output: Path,
    task: Task,
    options: RunOptions,
    ray_address: str | None = None,
    on_progress: Callable[[Summary, int], None] = lambda summary, total: None,
    score_shards: ScoreShards | None = None,
) -> Summary:
    """Score all rows of a file or directory, or resume where an earlier run ended.

    Args:
        source: Parquet or JSON Lines: a file or a directory.
        ray_address: Of a Ray cluster; None: a private one on this machine.
        on_progress: Called with the totals so far and the number of all rows.
        score_shards: Scores shards; None: with Ray.

    Raises:
        InvalidRequest: The input cannot be read, or the output belongs to another job or is in use.
        Overloaded, ServerUnreachable: No server took a row for as long as `server_timeout`; resume later.
        HiscoreError: More rows failed than ``max_errors``.
    """
    source, output = source.resolve(), output.resolve()
    files = find_files(source)
    if output == source or (source.is_dir() and output.is_relative_to(source)):
        raise InvalidRequest("the output must lie outside of the input")
    scans = scan_all(source, files, task)
    shards, total = plan_shards(scans, task.rows_per_shard), sum(file.rows for file in scans)
    job = Job(files, output, task, options)
    if score_shards is None:
        score_shards = score_with_ray(ray_address)
    try:
        with exclusive(output):
            begin(output, Manifest(task, tuple(scans)))
            with closing(score_shards(job, shards)) as results:
                summary = add_up(results, options.max_errors, lambda so_far: on_progress(so_far, total))
            if (summary.shards, summary.rows) != (len(shards), total):
                raise HiscoreError(f"{summary.rows} of {total} rows were scored: resume to score the rest")
            mark_complete(output, json.dumps(asdict(summary)))
    except OSError as error:
        raise to_job_error(error) from None
    return summary


def scan_all(source: Path, files: Iterable[Path], task: Task) -> list[FileScan]:
    """Scan all files, several at a time; their names are relative to the source."""

    def name(file: Path) -> str:
        return file.relative_to(source).as_posix() if file != source else file.name

    with ThreadPoolExecutor(SCAN_THREADS) as pool:
        return list(pool.map(lambda file: scan_file(file, name(file), task), files))


def add_up(
    results: Iterable[ShardResult], max_errors: int, on_progress: Callable[[Summary], None]
) -> Summary:
    """Sum up the results of shards as they arrive.

    Args:
        results: What became of each shard, in any order.
        on_progress: Called with the sum after each shard.

    Raises:
        HiscoreError: More rows failed than ``max_errors``.
    """
    summary = Summary()
    first_error = ""
    for result in results:
        first_error = first_error or result.error
        summary = Summary(
            summary.rows + result.rows,
            summary.errors + result.errors,
            summary.rows_found + result.rows * result.resumed,
            summary.shards + 1,
        )
        on_progress(summary)
        if summary.errors > max_errors:
            raise HiscoreError(
                f"{summary.errors} rows have failed, more than the {max_errors} that may"
                + (f"; the first of this run: {first_error}" if first_error else "")
            )
    return summary
