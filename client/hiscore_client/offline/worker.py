"""The work of one worker: a shard, from its input rows to its output file."""

from contextlib import closing
from dataclasses import dataclass

from hiscore_client.concurrent_calls import answer_in_order
from hiscore_client.errors import HiscoreError
from hiscore_client.offline.input_files import read_shard
from hiscore_client.offline.job import Job
from hiscore_client.offline.part_files import count_errors, id_type_of, part_path, write_part
from hiscore_client.offline.rows import output_row
from hiscore_client.offline.server_pool import TRANSIENT, ServerPool
from hiscore_client.offline.shards import Shard


@dataclass(frozen=True)
class ShardResult:
    """The outcome of a shard.

    Args:
        rows: Rows in its output.
        errors: Of these, rows with an error.
        resumed: An earlier run had already written the output.
        error: The first error of this run; empty: none.
    """

    shard: int
    rows: int
    errors: int
    resumed: bool = False
    error: str = ""


def score_shard(job: Job, shard: Shard) -> ShardResult:
    """Score the rows of a shard and write them; if its output exists, only count it.

    Raises:
        Overloaded, ServerUnreachable: No server could take a row for as long as `server_timeout`.
        InvalidRequest: The input has changed, or the existing output is damaged.
        OSError: The input cannot be read, or the output cannot be written.
    """
    task, source = job.task, job.inputs[shard.file]
    path = part_path(job.output, shard.index, task.output_format)
    if path.exists():
        return ShardResult(
            shard.index, shard.rows, count_errors(path, shard.rows, task.output_format), resumed=True
        )
    rows = read_shard(source, shard, task)
    lines = []
    calls = (row.call for row in rows)
    with (
        ServerPool(task, job.options, first=shard.index) as servers,
        closing(answer_in_order(servers.score, calls, job.options.in_flight)) as answers,
    ):
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer.outcome, TRANSIENT):
                raise answer.outcome
            lines.append(output_row(row, answer.outcome))
    write_part(path, lines, task.output_format, id_type_of(source, task.id_column))
    errors = [line["error"] for line in lines if line["error"]]
    return ShardResult(shard.index, shard.rows, len(errors), error=next(iter(errors), ""))


def to_job_error(error: Exception) -> HiscoreError:
    """Convert what ends a job to one of the SDK's exceptions; any other exception is raised again."""
    if isinstance(error, HiscoreError):
        return error
    if isinstance(error, OSError):
        return HiscoreError(f"cannot read the input or write the output: {error.strerror}")
    raise error
