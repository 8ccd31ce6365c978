"""One shard from its input to its output file; what a worker does."""

from contextlib import closing
from dataclasses import dataclass

from hiscore_client.cli.work import answer_all
from hiscore_client.errors import HiscoreError
from hiscore_client.offline.job import Job
from hiscore_client.offline.parts import count_errors, id_type_of, part_path, write_part
from hiscore_client.offline.plan import Shard
from hiscore_client.offline.rows import output_row
from hiscore_client.offline.servers import NOT_NOW, Servers
from hiscore_client.offline.source import read_shard


@dataclass(frozen=True)
class Done:
    """What became of a shard. found: its output was there already; error: the first of this run."""

    shard: int
    rows: int
    errors: int
    found: bool = False
    error: str = ""


def score_shard(job: Job, shard: Shard) -> Done:
    """Score all rows and write them, or count those that are there; scoring a shard twice changes nothing.

    Raises:
        Overloaded, ServerUnreachable: no server could take a row for as long as the patience.
        InvalidRequest: the input has changed, or the output is damaged.
        OSError: it cannot be read or written.
    """
    task, source = job.task, job.inputs[shard.file]
    path = part_path(job.output, shard.index, task.output_format)
    if path.exists():
        return Done(shard.index, shard.rows, count_errors(path, shard.rows, task.output_format), found=True)
    rows = read_shard(source, shard, task)
    lines = []
    calls = (row.call for row in rows)
    with (
        Servers(task, job.effort, first=shard.index) as servers,
        closing(answer_all(servers.score, calls, job.effort.in_flight)) as answers,
    ):
        for row, answer in zip(rows, answers, strict=True):
            if isinstance(answer.outcome, NOT_NOW):
                raise answer.outcome
            lines.append(output_row(row, answer.outcome))
    write_part(path, lines, task.output_format, id_type_of(source, task.id_column))
    errors = [line["error"] for line in lines if line["error"]]
    return Done(shard.index, shard.rows, len(errors), error=next(iter(errors), ""))


def failure(error: Exception) -> HiscoreError:
    """What ends the job, as one of the SDK's exceptions."""
    if isinstance(error, HiscoreError):
        return error
    if isinstance(error, OSError):
        return HiscoreError(f"cannot read the input or write the output: {error.strerror}")
    raise error
