"""Progress on stderr: a bar on a terminal, one line in a log."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn


@contextmanager
def byte_bar(description: str, total: int, *, show: bool) -> Iterator[Callable[[int], None]]:
    """Show progress in bytes, by a function to call with the number of bytes done so far."""
    console = Console(stderr=True, quiet=not show)
    if not console.is_terminal:
        console.print(f"{description} ({total / 1e6:.0f} MB) ...")
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not (show and console.is_terminal)) as progress:
        task = progress.add_task(description, total=total)
        yield lambda done: progress.update(task, completed=done)
