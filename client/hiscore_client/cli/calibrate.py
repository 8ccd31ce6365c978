"""``hiscore calibrate``: fits the temperatures of CALIBRATION on labelled questions, and reports on them."""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from hiscore_client.calibration import Outcome, fit_temperature, log_loss, reliability
from hiscore_client.cli.common import InFlight, read_lines
from hiscore_client.cli.exits import exit_on_failure
from hiscore_client.cli.labelled import TYPES, Labelled, outcomes_of, parse_labelled
from hiscore_client.cli.records import read_records
from hiscore_client.cli.show import progress_bar
from hiscore_client.concurrent_calls import answer_in_order
from hiscore_client.decisions_http import decide
from hiscore_client.errors import HiscoreError, InvalidRequest

ENOUGH = 100
"""Questions of a type with which the share of right answers has a standard error of at most 5%."""


def calibrate(
    file: Annotated[
        Path | None,
        typer.Argument(help='JSON Lines: requests with an "answer" in each question; - or none: stdin'),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to write the temperatures")] = None,
    debias: Annotated[
        str | None, typer.Option(help='"rotations", if your requests ask for it as well')
    ] = None,
    api_url: Annotated[
        str, typer.Option(envvar="HISCORE_API_URL", help="The HTTP API")
    ] = "http://localhost:8080",
    api_key: Annotated[
        str | None, typer.Option(envvar="HISCORE_API_KEY", help="If the API asks for one")
    ] = None,
    in_flight: InFlight = 4,
) -> None:
    """Fit a temperature for each type of question, on a running API's answers to questions whose answer is known.

    Prints accuracy, log-loss and expected calibration error before and after. Nothing is written unless every line
    is answered. Give the file to the server as CALIBRATION.
    """
    console, err = Console(), Console(stderr=True)
    with exit_on_failure():
        outcomes = _ask(file, {"debias": debias} if debias else {}, api_url, api_key, in_flight, err, console)
        report = {kind: _summary(outcomes[kind]) for kind in TYPES if outcomes[kind]}
        if not report:
            raise InvalidRequest("there are no questions in the input")
        console.print(_table(report))
        for kind, row in report.items():
            if row["questions"] < ENOUGH:
                typer.echo(
                    f"hiscore: {row['questions']:.0f} questions of type {kind} are few to fit T on: "
                    f"others may give another. Label {ENOUGH} or more",
                    err=True,
                )
        if out is not None:
            temperatures = {kind: row["temperature"] for kind, row in report.items()}
            out.write_text(json.dumps({"temperatures": temperatures, "report": report}, indent=2) + "\n")


def _ask(
    file: Path | None,
    more: dict[str, Any],
    url: str,
    api_key: str | None,
    in_flight: int,
    err: Console,
    out: Console,
) -> Mapping[str, list[Outcome]]:
    """The outcomes of all questions, by type.

    Raises:
        HiscoreError: A line is wrong, or cannot be answered.
    """

    def call(record: Labelled) -> dict[str, Any]:
        return decide(url, {"model": None, **record.request, **more, "calibrated": False}, api_key)

    outcomes: dict[str, list[Outcome]] = defaultdict(list)
    with progress_bar(err, out, "asking", "lines") as progress:
        for answer in answer_in_order(call, read_records(read_lines(file), parse_labelled), in_flight):
            if isinstance(answer.outcome, HiscoreError):
                raise answer.outcome
            assert answer.record is not None
            for kind, outcome in outcomes_of(answer.record, answer.outcome):
                outcomes[kind].append(outcome)
            progress.advance(progress.task_ids[0])
    return outcomes


def _summary(outcomes: Sequence[Outcome]) -> dict[str, float]:
    temperature = fit_temperature(outcomes)
    before, after = reliability(outcomes), reliability(outcomes, temperature)
    right = float((before.accuracy * before.counts).sum() / len(outcomes))
    return {
        "questions": len(outcomes),
        "accuracy": right,
        "temperature": temperature,
        "log_loss": log_loss(outcomes),
        "log_loss_calibrated": log_loss(outcomes, temperature),
        "ece": before.error,
        "ece_calibrated": after.error,
    }


def _table(report: Mapping[str, Mapping[str, float]]) -> Table:
    table = Table()
    for column in ("type", "n", "right", "T", "log-loss", "at T", "ECE", "at T"):
        table.add_column(column, justify="left" if column == "type" else "right", no_wrap=True)
    for kind, row in report.items():
        questions, *values = row.values()
        table.add_row(kind, f"{questions:.0f}", *(f"{value:.4f}" for value in values))
    return table
