"""What the commands share: options, the lines that they read, and how answers are written."""

import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hiscore_client.cli.exits import exit_code
from hiscore_client.cli.records import Answer, RecordT, ResultT
from hiscore_client.errors import HiscoreError, InvalidRequest, ServerUnreachable

# Lets a bad byte through to the SDK, which refuses the one text that holds it.
UNDECODABLE = "surrogateescape"

Url = Annotated[str, typer.Option(envvar="HISCORE_URL", help="host:port of the server's gRPC endpoint")]
Timeout = Annotated[float | None, typer.Option(help="Seconds for each record; none: no limit")]
InFlight = Annotated[int, typer.Option(min=1, help="Records at once")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON Lines on a terminal, too")]


def read_lines(file: Path | None) -> Iterable[str]:
    """The lines of a file; None or ``-``: of stdin.

    Raises:
        InvalidRequest: it cannot be read.
    """
    try:
        if file is None or str(file) == "-":
            # Not sys.stdin, whose encoding is the locale's.
            return os.fdopen(os.dup(sys.stdin.fileno()), encoding="utf-8", errors=UNDECODABLE)
        return file.open(encoding="utf-8", errors=UNDECODABLE)
    except OSError as error:
        raise InvalidRequest(f"cannot read '{file}': {error.strerror}") from None


def write_answers(
    answers: Generator[Answer[RecordT, ResultT], None, None],
    err: Console,
    show: Callable[[RecordT, ResultT], None] | None,
) -> int:
    """Write each answer as it comes; the exit code is that of the first failure. show: None for JSON Lines.

    Raises:
        ServerUnreachable: every other record would fail the same way.
    """
    code = 0
    with closing(answers):
        for answer in answers:
            outcome = answer.outcome
            if isinstance(outcome, ServerUnreachable):
                raise outcome
            if isinstance(outcome, HiscoreError):
                code = code or exit_code(outcome)
                err.print(f"hiscore: {outcome}", markup=False, highlight=False, soft_wrap=True)
            if show is None:
                typer.echo(answer.as_json())
            elif answer.record is not None and not isinstance(outcome, HiscoreError):
                show(answer.record, outcome)
    return code
