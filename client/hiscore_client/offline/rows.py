"""A row of the input, and the row of the output that it becomes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hiscore_client.cli.records import Record
from hiscore_client.errors import HiscoreError, InvalidRequest
from hiscore_client.offline.job import Task
from hiscore_client.results import ScoreResult


@dataclass(frozen=True)
class InputRow:
    """number: counted through all of the input, from 0. call: what is wrong with a row that makes no call."""

    number: int
    id: Any
    call: Record | InvalidRequest


def read_row(number: int, values: Mapping[str, Any], task: Task) -> InputRow:
    """Make the call of a row; items may be a list, or one text. What is in them is for the SDK and the server."""
    row_id = values.get(task.id_column) if task.id_column else None
    query, items = values.get(task.query_column), values.get(task.items_column)
    if not isinstance(query, str):
        return InputRow(number, row_id, InvalidRequest(f"the row needs '{task.query_column}', a string"))
    if not isinstance(items, str | list):
        wanted = "a string or a list of strings"
        return InputRow(number, row_id, InvalidRequest(f"the row needs '{task.items_column}', {wanted}"))
    return InputRow(number, row_id, Record(query, [items] if isinstance(items, str) else items))


def output_row(row: InputRow, outcome: ScoreResult | HiscoreError) -> dict[str, Any]:
    """row, id, scores (items x labels), prompt_tokens, cached_tokens; or error, the others then None."""
    line: dict[str, Any] = dict.fromkeys(COLUMNS)
    line["row"], line["id"] = row.number, row.id
    if isinstance(outcome, HiscoreError):
        line["error"] = f"{type(outcome).__name__}: {outcome}"
    else:
        line["scores"] = outcome.scores.tolist()
        line["prompt_tokens"] = outcome.usage.prompt_tokens
        line["cached_tokens"] = outcome.usage.cached_tokens
    return line


COLUMNS = ("row", "id", "scores", "prompt_tokens", "cached_tokens", "error")
