"""What people see: a table per record, and progress on long work."""

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

from hiscore_client.cli.records import Record
from hiscore_client.results import ScoreResult

# Seconds of work after which a bar is worth its place.
LONG = 1.0


def make_table(record: Record, result: ScoreResult, labels: Sequence[str]) -> Group:
    """The query, items down and labels across, usage; labels without a name (a classifier's) are numbered."""
    table = Table()
    table.add_column("item", overflow="fold")
    for place in range(result.scores.shape[1]):
        table.add_column(Text(labels[place] if labels else str(place)), justify="right")
    for item, row in zip(record.items, result.scores, strict=True):
        table.add_row(Text(item), *(f"{value:.6g}" for value in row))
    usage = f"{result.usage.prompt_tokens} prompt tokens, {result.usage.cached_tokens} from a cache"
    return Group(Text(record.query, style="bold"), table, Text(usage, style="dim"))


def harmless(text: str) -> str:
    """A model's text without control characters, which could drive the terminal that shows it."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(sign) == "Cc" and sign not in "\n\t" else sign
        for sign in text
    )


def quoted(label: str) -> str:
    """A label as JSON, so that the space that often begins it can be seen."""
    return json.dumps(label, ensure_ascii=False)


@contextmanager
def progress_bar(
    err: Console, out: Console, doing: str, unit: str, total: int | None = None
) -> Iterator[Progress]:
    """A bar over units (total: None if not known) that shows itself on a terminal once the work takes long."""
    progress = Progress(
        SpinnerColumn(),
        TextColumn(doing),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
        # rich would otherwise write to stderr what is meant for a pipe or a file.
        redirect_stdout=out.is_terminal,
    )
    progress.add_task(doing, total=total)
    timer = Timer(LONG, progress.start)
    timer.daemon = True
    timer.start()
    try:
        yield progress
    finally:
        timer.cancel()
        progress.stop()
