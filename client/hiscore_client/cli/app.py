"""The command line: ``hiscore score`` and ``wait-ready``, and the commands of the other modules."""

import os
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.console import Console

import hiscore_client
from hiscore_client.cli.calibrate import calibrate
from hiscore_client.cli.common import AsJson, InFlight, Timeout, Url, read_lines, write_answers
from hiscore_client.cli.exits import exit_on_failure
from hiscore_client.cli.generate import generate
from hiscore_client.cli.offline import offline
from hiscore_client.cli.records import parse_score_record, read_records
from hiscore_client.cli.show import make_table, progress_bar, quoted
from hiscore_client.client import ScoreClient
from hiscore_client.concurrent_calls import answer_in_order
from hiscore_client.config import DEFAULT_URL
from hiscore_client.errors import InvalidRequest
from hiscore_client.records import ScoreRecord
from hiscore_client.results import ScoreResult

PASSED_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
COMMANDS = {
    "serve": (
        "hiscore.launcher",
        "Run the server in the foreground; settings as NAME=VALUE or environment variables",
    ),
    "demo": ("hiscore_client.cli.demo", "Score real items by a small model behind a real tritonserver"),
    "doctor": ("hiscore.launcher.doctor", "Print what a bug report needs"),
    "explain": (
        "hiscore.api explain",
        "Show how a checkpoint scores a query and a document, and which file or setting says so",
    ),
    "repository": (
        "hiscore.launcher.repository",
        "Write the model repository to a directory, for a Triton of your own",
    ),
}
MISSING = "hiscore: this command needs the server: pip install '.[triton]' ./client in a checkout of hiscore"

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)

app.command()(generate)
app.command()(offline)
app.command()(calibrate)


def add_command(name: str, program: str, text: str) -> None:
    """Add a command of the server, in place of this process: signals and the exit code are its own."""

    def run(context: typer.Context) -> NoReturn:
        if find_spec("hiscore") is None or find_spec("hiscore.launcher") is None:
            sys.exit(MISSING)
        os.execv(sys.executable, [sys.executable, "-m", *program.split(), *context.args])

    app.command(name, help=text, add_help_option=False, context_settings=PASSED_ON)(run)


for each, given in COMMANDS.items():
    add_command(each, *given)


def show_version(wanted: bool) -> None:
    """Print the version and exit."""
    if wanted:
        typer.echo(f"hiscore {hiscore_client.__version__}")
        raise typer.Exit


@app.callback()
def hiscore(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version")
    ] = False,
    tls: Annotated[
        bool, typer.Option("--tls", envvar="HISCORE_TLS", help="TLS with the machine's own CAs")
    ] = False,
    tls_ca: Annotated[
        str | None, typer.Option(envvar="HISCORE_TLS_CA", help="TLS with the CAs in this PEM file")
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(envvar="HISCORE_TLS_CERT", help="PEM file: the caller's certificate")
    ] = None,
    tls_key: Annotated[
        str | None, typer.Option(envvar="HISCORE_TLS_KEY", help="PEM file: the certificate's key")
    ] = None,
    tls_name: Annotated[
        str | None,
        typer.Option(envvar="HISCORE_TLS_NAME", help="The name in the server's certificate, if another"),
    ] = None,
) -> None:
    """Score items, or generate text, with a hiscore server.

    Exit codes: 0 done, 2 usage or invalid request, 3 server not reachable, 4 overloaded, 5 deadline,
    1 anything else.
    """
    # Every client of this process and of its workers reads them.
    given = {"CA": tls_ca, "CERT": tls_cert, "KEY": tls_key, "NAME": tls_name}
    os.environ.update({f"HISCORE_TLS_{name}": value for name, value in given.items() if value})
    if tls:
        os.environ["HISCORE_TLS"] = "1"


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
    label: Annotated[list[str] | None, typer.Option("--label", "-l", help="A label; repeatable")] = None,
    label_id: Annotated[list[int] | None, typer.Option(help="A label by its token id; repeatable")] = None,
    log_scores: Annotated[bool, typer.Option("--log", help="Logarithms of the scores")] = False,
    normalize: Annotated[
        str, typer.Option(help="Divide the logarithm of a label by its number of tokens or bytes")
    ] = "none",
    adapter: Annotated[str, typer.Option(help="Name of an adapter of the server (ADAPTERS)")] = "",
    softmax: Annotated[bool, typer.Option("--softmax", help="Probabilities over the labels alone")] = False,
    temperature: Annotated[float, typer.Option(help="Divides the logits; only with --softmax")] = 1.0,
    item_first: Annotated[bool, typer.Option("--item-first", help="Put the item before the query")] = False,
    timeout: Timeout = None,
    in_flight: InFlight = 8,
    as_json: AsJson = False,
    url: Url = DEFAULT_URL,
) -> None:
    """Score the items of one query, or JSON Lines of {"query": ..., "items": [...], "id": ...}.

    A line may have "labels", too: a list with a list of labels for each item, in place of the command's.

    Prints a table per record to a terminal, otherwise one line of JSON per record, in order. A record that fails
    gives a line with "error" and does not stop the others; the exit code is that of the first failure.
    """
    if query is None and items:
        raise typer.BadParameter("items on the command line need --query")
    if items and file:
        raise typer.BadParameter("give items on the command line or with --file, not both")
    out, err = Console(), Console(stderr=True)
    with exit_on_failure(url):
        records: Iterable[ScoreRecord | InvalidRequest]
        if query is None:
            records, total = read_records(read_lines(file), parse_score_record), None
        else:
            texts = items or list(read_lines(file))
            records, total = [ScoreRecord(query, texts)], len(texts)
        with ScoreClient(url) as client, progress_bar(err, out, "scoring", "items", total) as progress:

            def score_one(record: ScoreRecord) -> ScoreResult:
                done = 0

                def advance(items_done: int) -> None:
                    nonlocal done
                    progress.advance(progress.task_ids[0], items_done - done)
                    done = items_done

                own = record.labels
                return client.score(
                    record.query,
                    record.items,
                    labels=label or None if own is None else list(chain.from_iterable(own)),
                    label_token_ids=label_id or None if own is None else None,
                    label_counts=None if own is None else [len(labels) for labels in own],
                    apply_softmax=softmax,
                    temperature=temperature,
                    item_first=item_first,
                    log_scores=log_scores,
                    normalize=normalize,
                    adapter=adapter,
                    timeout=timeout,
                    on_progress=advance,
                )

            headings = [quoted(text) for text in label or []] or [str(number) for number in label_id or []]

            def show(record: ScoreRecord, result: ScoreResult) -> None:
                out.print(make_table(record, result, headings if record.labels is None else []))

            show_tables = not as_json and out.is_terminal
            answers = answer_in_order(score_one, records, in_flight)
            code = write_answers(answers, err, show if show_tables else None)
    raise typer.Exit(code)


@app.command()
def wait_ready(
    timeout: Annotated[float, typer.Option(help="Seconds")] = 60.0,
    model: Annotated[
        list[str] | None, typer.Option(help="A model to wait for; repeatable (default: score)")
    ] = None,
    url: Url = DEFAULT_URL,
) -> None:
    """Wait until the server is up and its models are ready; exit code 3: no answer, 5: a model is not ready."""
    with exit_on_failure(url), ScoreClient(url) as client:
        client.wait_ready(timeout, model or ["score"])
