"""Options, reading of lines and writing of answers that the commands share."""

import os
import sys
from collections.abc import Callable, Generator, Iterable
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from hiscore_client.cli.exits import exit_code
from hiscore_client.cli.records import HasIdT, to_json
from hiscore_client.errors import HiscoreError, InvalidRequest, ServerUnreachable
from hiscore_client.records import Answer, ResultT
from hiscore_client.tensors import UTF8_ERRORS

Url = Annotated[str, typer.Option(envvar="HISCORE_URL", help="host:port of the server's gRPC endpoint")]
Timeout = Annotated[float | None, typer.Option(help="Seconds for each record; none: no limit")]
InFlight = Annotated[int, typer.Option(min=1, help="Records at once")]
AsJson = Annotated[bool, typer.Option("--json", help="JSON Lines on a terminal, too")]


def read_lines(file: Path | None) -> Iterable[str]:
    r"""Open a file, or stdin for None or ``-``, to iterate over its lines without their ends, ``\n`` or ``\r\n``.

    A byte order mark is no text, and a ``\r`` alone ends no line.

    Raises:
        InvalidRequest: The file cannot be opened.
    """
    try:
        # sys.stdin has the encoding of the locale.
        source = os.dup(sys.stdin.fileno()) if file is None or str(file) == "-" else file
        lines = open(source, encoding="utf-8-sig", errors=UTF8_ERRORS, newline="\n")  # noqa: SIM115
    except OSError as error:
        raise InvalidRequest(f"cannot read '{file}': {error.strerror}") from None
    return (line.removesuffix("\r\n").removesuffix("\n") for line in lines)


def write_answers(
    answers: Generator[Answer[HasIdT, ResultT], None, None],
    err: Console,
    show: Callable[[HasIdT, ResultT], None] | None,
) -> int:
    """Write each answer as it arrives.

    Args:
        answers: In order.
        err: Where failures are printed.
        show: Prints a result for people; None: write JSON Lines.

    Returns:
        The exit code: that of the first failure, else 0.

    Raises:
        ServerUnreachable: At once, as all other records would fail the same way.
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
                typer.echo(to_json(answer))
            elif answer.record is not None and not isinstance(outcome, HiscoreError):
                show(answer.record, outcome)
    return code
