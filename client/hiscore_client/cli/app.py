"""The commands ``hiscore score`` and ``hiscore wait-ready``."""

import os
import sys
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hiscore_client.cli.exits import exit_code, exit_on_failure
from hiscore_client.cli.records import Answer, Record, read_records
from hiscore_client.cli.show import item_progress, make_table, quoted
from hiscore_client.cli.work import score_all
from hiscore_client.client import ScoreClient
from hiscore_client.core import DEFAULT_URL
from hiscore_client.errors import HiscoreError, InvalidRequest, ServerUnreachable
from hiscore_client.results import ScoreResult

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

# Lets a bad byte through to the SDK, which refuses the one text that holds it.
UNDECODABLE = "surrogateescape"

Url = Annotated[str, typer.Option(envvar="HISCORE_URL", help="host:port of the server's gRPC endpoint")]


@app.callback()
def hiscore() -> None:
    """Score items with a hiscore server.

    Exit codes: 0 done, 2 usage or invalid request, 3 server not reachable, 4 overloaded, 5 deadline,
    1 anything else.
    """


@app.command()
def score(
    items: Annotated[list[str] | None, typer.Argument(help="The items of --query")] = None,
    query: Annotated[
        str | None, typer.Option("--query", "-q", help="The query; without it, JSON Lines are read")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", help="One item per line with --query, else JSON Lines; - or none: stdin"
        ),
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", help="A label, one token; repeatable")
    ] = None,
    label_id: Annotated[list[int] | None, typer.Option(help="A label by its token id; repeatable")] = None,
    softmax: Annotated[bool, typer.Option("--softmax", help="Probabilities over the labels alone")] = False,
    temperature: Annotated[float, typer.Option(help="Divides the logits; only with --softmax")] = 1.0,
    item_first: Annotated[bool, typer.Option("--item-first", help="Put the item before the query")] = False,
    timeout: Annotated[float | None, typer.Option(help="Seconds for each record; none: no limit")] = None,
    in_flight: Annotated[int, typer.Option(min=1, help="Records at once")] = 8,
    as_json: Annotated[bool, typer.Option("--json", help="JSON Lines on a terminal, too")] = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Score the items of one query, or JSON Lines of {"query": ..., "items": [...], "id": ...}.

    Writes a table per record to a terminal, else one line of JSON per record, in order. A record that fails gives
    a line with "error", and the others go on; the exit code is that of the first failure.
    """
    if query is None and items:
        raise typer.BadParameter("items on the command line need --query")
    if items and file:
        raise typer.BadParameter("give items on the command line or with --file, not both")
    out, err = Console(), Console(stderr=True)
    with exit_on_failure():
        records: Iterable[Record | InvalidRequest]
        if query is None:
            records, total = read_records(_lines(file)), None
        else:
            texts = items or [line.rstrip("\r\n") for line in _lines(file)]
            records, total = [Record(query, texts)], len(texts)
        code = 0
        with ScoreClient(url) as client, item_progress(err, out, total) as progress:

            def score_one(record: Record) -> ScoreResult:
                done = 0

                def advance(items_done: int) -> None:
                    nonlocal done
                    progress.advance(progress.task_ids[0], items_done - done)
                    done = items_done

                return client.score(
                    record.query,
                    record.items,
                    labels=label or None,
                    label_token_ids=label_id or None,
                    apply_softmax=softmax,
                    temperature=temperature,
                    item_first=item_first,
                    timeout=timeout,
                    on_progress=advance,
                )

            headings = [quoted(text) for text in label or []] or [str(number) for number in label_id or []]
            with closing(score_all(score_one, records, in_flight)) as answers:
                for answer in answers:
                    if isinstance(answer.outcome, ServerUnreachable):
                        # Every other record would fail the same way.
                        raise answer.outcome
                    if isinstance(answer.outcome, HiscoreError):
                        code = code or exit_code(answer.outcome)
                    _write(answer, headings, out, err, as_json or not out.is_terminal)
    raise typer.Exit(code)


@app.command()
def wait_ready(
    timeout: Annotated[float, typer.Option(help="Seconds")] = 60.0,
    model: Annotated[
        list[str] | None, typer.Option(help="A model to wait for; repeatable (default: score)")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Wait until the server is up with its models; exit code 3: nothing answered, 5: a model did not come."""
    with exit_on_failure(), ScoreClient(url) as client:
        client.wait_ready(timeout, model or ["score"])


def _lines(file: Path | None) -> Iterable[str]:
    try:
        if file is None or str(file) == "-":
            # Not sys.stdin, whose encoding is the locale's.
            return os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8", errors=UNDECODABLE)
        return file.open(encoding="utf-8", errors=UNDECODABLE)
    except OSError as error:
        raise InvalidRequest(f"cannot read '{file}': {error.strerror}") from None


def _write(answer: Answer, headings: list[str], out: Console, err: Console, as_json: bool) -> None:
    if isinstance(answer.outcome, HiscoreError):
        err.print(f"hiscore: {answer.outcome}", markup=False, highlight=False, soft_wrap=True)
    if as_json:
        typer.echo(answer.as_json())
    elif answer.record is not None and isinstance(answer.outcome, ScoreResult):
        out.print(make_table(answer.record, answer.outcome, headings))
