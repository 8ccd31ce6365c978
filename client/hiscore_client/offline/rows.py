"""Input rows, and the output rows that they become."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hiscore_client.errors import HiscoreError, InvalidRequest
from hiscore_client.offline.job import Task
from hiscore_client.records import ScoreRecord
from hiscore_client.results import ScoreResult

COLUMNS = ("row", "id", "scores", "prompt_tokens", "cached_tokens", "error")


@dataclass(frozen=True)
class InputRow:
    """A row of the input.

    Args:
        number: Counted over the whole input, from 0.
        id: Repeated in the output.
        call: The call to make, or why the row does not make one.
    """

    number: int
    id: Any
    call: ScoreRecord | InvalidRequest


def read_row(number: int, values: Mapping[str, Any], task: Task) -> InputRow:
    """Convert a row to a call; the SDK and the server check the texts."""
    row_id = values.get(task.id_column) if task.id_column else None
    query, items = values.get(task.query_column), values.get(task.items_column)
    if not isinstance(query, str):
        return InputRow(number, row_id, InvalidRequest(f"the row needs '{task.query_column}', a string"))
    if not isinstance(items, str | list):
        wanted = "a string or a list of strings"
        return InputRow(number, row_id, InvalidRequest(f"the row needs '{task.items_column}', {wanted}"))
    if task.id_column and task.id_column not in values:
        return InputRow(number, None, InvalidRequest(f"the row needs '{task.id_column}', its id"))
    return InputRow(number, row_id, ScoreRecord(query, [items] if isinstance(items, str) else items))


def output_row(row: InputRow, outcome: ScoreResult | HiscoreError) -> dict[str, Any]:
    """Make an output row of `COLUMNS`: scores (items x labels) and usage, or error; the others are None."""
    line: dict[str, Any] = dict.fromkeys(COLUMNS)
    line["row"], line["id"] = row.number, row.id
    if isinstance(outcome, HiscoreError):
        line["error"] = f"{type(outcome).__name__}: {outcome}"
    else:
        line["scores"] = outcome.scores.tolist()
        line["prompt_tokens"] = outcome.usage.prompt_tokens
        line["cached_tokens"] = outcome.usage.cached_tokens
    return line
