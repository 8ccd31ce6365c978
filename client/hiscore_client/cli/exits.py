"""Exit codes: 0 success, 2 usage or invalid request, 3 unreachable, 4 overloaded, 5 deadline, 1 anything else."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from hiscore_client.cli.port_hint import port_hint
from hiscore_client.errors import (
    DeadlineExceeded,
    HiscoreError,
    InvalidRequest,
    Overloaded,
    ServerUnreachable,
)

CODES: dict[type[HiscoreError], int] = {
    InvalidRequest: 2,
    ServerUnreachable: 3,
    Overloaded: 4,
    DeadlineExceeded: 5,
}


def exit_code(error: HiscoreError) -> int:
    """Return the exit code of a failure."""
    return CODES.get(type(error), 1)


@contextmanager
def exit_on_failure(url: str = "") -> Iterator[None]:
    """Print a failure on stderr and exit with its code; if nothing answers at the url, guess what is wrong."""
    try:
        yield
    except HiscoreError as error:
        typer.echo(f"hiscore: {error}", err=True)
        if isinstance(error, ServerUnreachable) and (hint := port_hint(url)):
            typer.echo(f"hiscore: {hint}", err=True)
        raise typer.Exit(exit_code(error)) from None
