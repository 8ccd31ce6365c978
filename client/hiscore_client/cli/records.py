"""What the command scores: one record per line of JSON, and what it writes for each."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from hiscore_client.errors import HiscoreError, InvalidRequest
from hiscore_client.results import ScoreResult


@dataclass(frozen=True)
class Record:
    """One call; ``id`` is any JSON value of the caller's and comes back as it is, or None."""

    query: str
    items: list[str]
    id: Any = None


@dataclass(frozen=True)
class Answer:
    """What became of a record; the record is None where its line could not be read."""

    record: Record | None
    outcome: ScoreResult | HiscoreError

    def as_json(self) -> str:
        """One line of JSON: scores [items, labels] and usage, or an error; with the record's id, if it has one."""
        line: dict[str, Any] = {}
        if self.record is not None and self.record.id is not None:
            line["id"] = self.record.id
        if isinstance(self.outcome, HiscoreError):
            line["error"] = {"type": type(self.outcome).__name__, "message": str(self.outcome)}
        else:
            line["scores"] = self.outcome.scores.tolist()
            line["usage"] = vars(self.outcome.usage)
            line["request_id"] = self.outcome.request_id
        return json.dumps(line)


def parse_record(line: str, number: int) -> Record:
    """Read ``{"query": ..., "items": [...], "id": ...}``; number: the line's, from 1, for messages.

    Raises:
        InvalidRequest: not such an object; what is in it is for the SDK and the server to check.
    """
    try:
        values = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"line {number} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"line {number} must be a JSON object with 'query' and 'items'")
    for name, kind in (("query", str), ("items", list)):
        if not isinstance(values.get(name), kind):
            raise InvalidRequest(
                f"line {number} needs '{name}', a {'string' if kind is str else 'list of strings'}"
            )
    unknown = sorted(set(values) - {"query", "items", "id"})
    if unknown:
        raise InvalidRequest(
            f"line {number} has the unknown key '{unknown[0]}': known are query, items and id"
        )
    return Record(values["query"], values["items"], values.get("id"))


def read_records(lines: Iterable[str]) -> Iterator[Record | InvalidRequest]:
    """Each line's record, or what is wrong with it; empty lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield parse_record(line, number)
            except InvalidRequest as error:
                yield error
