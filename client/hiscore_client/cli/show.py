"""Output for people: a table per record, and a progress bar for long work."""

import json
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from threading import Timer

from rich.console import Console, Group
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table
from rich.text import Text

from hiscore_client.records import ScoreRecord
from hiscore_client.results import ScoreResult

# Seconds of work after which a progress bar appears.
PROGRESS_DELAY = 1.0


def make_table(record: ScoreRecord, result: ScoreResult, labels: Sequence[str]) -> Group:
    """Lay out a result as a table, items by labels; without ``labels`` (a classifier) columns are numbered."""
    table = Table()
    table.add_column("item", overflow="fold")
    for column in range(result.scores.shape[1]):
        table.add_column(Text(labels[column] if labels else str(column)), justify="right")
    for item, row in zip(record.items, result.scores, strict=True):
        table.add_row(Text(item), *(f"{value:.6g}" for value in row))
    usage = f"{result.usage.prompt_tokens} prompt tokens, {result.usage.cached_tokens} from a cache"
    return Group(Text(record.query, style="bold"), table, Text(usage, style="dim"))


def strip_control_characters(text: str) -> str:
    """Replace control characters, with which a model's text could control the terminal."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(char) == "Cc" and char not in "\n\t" else char
        for char in text
    )


def quoted(label: str) -> str:
    """Quote a label, to make its leading space visible."""
    return json.dumps(label, ensure_ascii=False)


@contextmanager
def progress_bar(
    err: Console, out: Console, activity: str, unit: str, total: int | None = None
) -> Iterator[Progress]:
    """Show a progress bar on a terminal if the work takes longer than `PROGRESS_DELAY`.

    Args:
        err: Where the bar is shown.
        out: Where results are printed.
        activity: Text before the bar.
        total: Number of units; None if unknown.
    """
    progress = Progress(
        SpinnerColumn(),
        TextColumn(activity),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
        # Otherwise rich writes to stderr what is meant for a pipe or a file.
        redirect_stdout=out.is_terminal,
    )
    progress.add_task(activity, total=total)
    timer = Timer(PROGRESS_DELAY, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield progress
    finally:
        timer.cancel()
        progress.stop()


@contextmanager
def waiting_line(err: Console, text: str) -> Iterator[None]:
    """Show on a terminal what is waited for, if that takes longer than `PROGRESS_DELAY`, and for how long."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn(text),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    progress.add_task(text)
    timer = Timer(PROGRESS_DELAY, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        progress.stop()
