"""Exit codes: 0 done, 2 usage or invalid request, 3 not reachable, 4 overloaded, 5 deadline, 1 anything else."""

from collections.abc import Iterator
from contextlib import contextmanager

import typer

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
    """The exit code for a failure."""
    return CODES.get(type(error), 1)


@contextmanager
def exit_on_failure() -> Iterator[None]:
    """Turn a failure into a line on stderr and its exit code."""
    try:
        yield
    except HiscoreError as error:
        typer.echo(f"hiscore: {error}", err=True)
        raise typer.Exit(exit_code(error)) from None
