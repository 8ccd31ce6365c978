"""The command ``hiscore offline``."""

import time
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hiscore_client.cli.common import InFlight, Timeout
from hiscore_client.cli.exits import exit_on_failure
from hiscore_client.cli.show import progress_bar
from hiscore_client.client import ScoreClient
from hiscore_client.config import DEFAULT_URL
from hiscore_client.errors import HiscoreError, ServerUnreachable
from hiscore_client.offline.job import Format, RunOptions, Task

EXTRA_MISSING = "this command needs its extra: pip install './client[cli,offline]' in a checkout"
# Seconds between lines of progress in a log.
LOG_INTERVAL = 30.0
ANSWER_SECONDS = 2.0
"""Seconds within which a server answers that is there."""


def offline(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="Parquet or JSON Lines: a file or a directory")
    ],
    output: Annotated[
        Path, typer.Argument(help="Directory for the scores; a run that ended early resumes in it")
    ],
    query_column: Annotated[str, typer.Option(help="Column of the queries")] = "query",
    items_column: Annotated[
        str, typer.Option(help="Column of the items: lists, or one item per row")
    ] = "items",
    id_column: Annotated[str | None, typer.Option(help="Column to repeat in the output")] = None,
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="A label; repeatable")] = None,
    label_id: Annotated[list[int] | None, typer.Option(help="A label by its token id; repeatable")] = None,
    softmax: Annotated[bool, typer.Option("--softmax", help="Probabilities over the labels alone")] = False,
    temperature: Annotated[float, typer.Option(help="Divides the logits; only with --softmax")] = 1.0,
    item_first: Annotated[bool, typer.Option("--item-first", help="Put the item before the query")] = False,
    rows_per_shard: Annotated[int, typer.Option(help="Rows of one output file")] = 1_000,
    output_format: Annotated[Format, typer.Option("--format", help="Of the output")] = "parquet",
    adapter: Annotated[str, typer.Option(help="Name of an adapter of the server (ADAPTERS)")] = "",
    log_scores: Annotated[bool, typer.Option("--log", help="Logarithms of the scores")] = False,
    normalize: Annotated[
        str, typer.Option(help="Divide the logarithm of a label by its number of tokens or bytes")
    ] = "none",
    workers: Annotated[int, typer.Option(help="Shards at once")] = 2,
    in_flight: InFlight = 16,
    timeout: Timeout = None,
    server_timeout: Annotated[
        float, typer.Option(help="Seconds to wait for a server that is full or unreachable")
    ] = 600.0,
    max_errors: Annotated[int, typer.Option(help="Rows that may fail before the job ends")] = 100,
    ray_address: Annotated[
        str | None, typer.Option(envvar="RAY_ADDRESS", help="A Ray cluster; none: this machine")
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option(envvar="HISCORE_URL", help="host:port of a server's gRPC endpoint; repeatable"),
    ] = None,
) -> None:
    """Score a data set through running servers, on Ray. Run the same command again to resume.

    Every row of the input becomes one row of the output: its number, scores and usage, or an error. The last line
    on stdout is a summary in JSON.
    """
    out, err = Console(), Console(stderr=True)
    with exit_on_failure():
        try:
            from hiscore_client.offline.run import Summary, run
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"ray", "pyarrow"}:
                raise
            typer.echo(f"hiscore: {EXTRA_MISSING}", err=True)
            raise typer.Exit(1) from None
        task = Task(
            query_column,
            items_column,
            id_column,
            tuple(label or ()),
            tuple(label_id or ()),
            softmax,
            temperature,
            item_first,
            rows_per_shard,
            output_format,
            adapter,
            log_scores,
            normalize,
        )
        options = RunOptions(
            tuple(url or [DEFAULT_URL]), workers, in_flight, timeout, server_timeout, max_errors
        )
        if not _answers(options.urls):
            typer.echo(
                f"hiscore: nobody answers at {', '.join(options.urls)}: waiting up to {server_timeout:g} s for a "
                "server (--server-timeout)",
                err=True,
            )
        with progress_bar(err, out, "scoring", "rows") as progress:
            last_logged = time.monotonic()

            def show(summary: Summary, total: int) -> None:
                nonlocal last_logged
                progress.update(progress.task_ids[0], completed=summary.rows, total=total)
                if not err.is_terminal and time.monotonic() - last_logged > LOG_INTERVAL:
                    typer.echo(f"hiscore: {summary.rows} of {total} rows, {summary.errors} failed", err=True)
                    last_logged = time.monotonic()

            done = run(source, output, task, options, ray_address, show)
        out.print_json(data=asdict(done), indent=None)


def _answers(urls: Iterable[str]) -> bool:
    """Tell whether one of the servers answers from this machine."""
    for url in urls:
        with ScoreClient(url) as client:
            try:
                client.wait_ready(ANSWER_SECONDS)
            except ServerUnreachable:
                continue
            except HiscoreError:  # it is up, and not ready
                return True
        return True
    return False
