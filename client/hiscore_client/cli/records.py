"""What the command works on: one record per line of JSON, and what it writes for each."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Generic, Protocol, TypeVar

from hiscore_client.errors import HiscoreError, InvalidRequest
from hiscore_client.results import ScoreResult


class HasId(Protocol):
    """``id`` is any JSON value of the caller's and comes back as it is, or None."""

    @property
    def id(self) -> Any: ...


RecordT = TypeVar("RecordT", bound=HasId)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class Record:
    """One call of ``hiscore score``."""

    query: str
    items: list[str]
    id: Any = None


@dataclass(frozen=True)
class Prompt:
    """One call of ``hiscore generate``; the prompt is a text or token ids."""

    prompt: str | list[int]
    id: Any = None


@dataclass(frozen=True)
class Generated:
    """All of a stream's chunks put together."""

    text: str
    token_ids: list[int]
    finish_reason: str
    request_id: str


@dataclass(frozen=True)
class Answer(Generic[RecordT, ResultT]):
    """What became of a record; the record is None where its line could not be read."""

    record: RecordT | None
    outcome: ResultT | HiscoreError

    def as_json(self) -> str:
        """One line of JSON: the result, or an error; with the record's id, if it has one."""
        line: dict[str, Any] = {}
        if self.record is not None and self.record.id is not None:
            line["id"] = self.record.id
        if isinstance(self.outcome, HiscoreError):
            line["error"] = {"type": type(self.outcome).__name__, "message": str(self.outcome)}
        elif isinstance(self.outcome, ScoreResult):
            line["scores"] = self.outcome.scores.tolist()
            line["usage"] = vars(self.outcome.usage)
            line["request_id"] = self.outcome.request_id
        elif isinstance(self.outcome, Generated):
            line |= asdict(self.outcome)
        return json.dumps(line)


def parse_record(line: str, number: int) -> Record:
    """Read ``{"query": ..., "items": [...], "id": ...}``; number: the line's, from 1, for messages.

    Raises:
        InvalidRequest: not such an object; what is in it is for the SDK and the server to check.
    """
    values = _parse(line, number, "'query' and 'items'")
    for name, kind in (("query", str), ("items", list)):
        if not isinstance(values.get(name), kind):
            raise InvalidRequest(
                f"line {number} needs '{name}', a {'string' if kind is str else 'list of strings'}"
            )
    _check_keys(values, number, ("query", "items", "id"))
    return Record(values["query"], values["items"], values.get("id"))


def parse_prompt(line: str, number: int) -> Prompt:
    """Read ``{"prompt": ..., "id": ...}``, as `parse_record`."""
    values = _parse(line, number, "'prompt'")
    if not isinstance(values.get("prompt"), str | list):
        raise InvalidRequest(f"line {number} needs 'prompt', a string or a list of token ids")
    _check_keys(values, number, ("prompt", "id"))
    return Prompt(values["prompt"], values.get("id"))


def _parse(line: str, number: int, needs: str) -> dict[str, Any]:
    try:
        values = json.loads(line)
    except ValueError as error:
        raise InvalidRequest(f"line {number} is not JSON: {error}") from None
    if not isinstance(values, dict):
        raise InvalidRequest(f"line {number} must be a JSON object with {needs}")
    return values


def _check_keys(values: dict[str, Any], number: int, known: tuple[str, ...]) -> None:
    unknown = sorted(set(values) - set(known))
    if unknown:
        names = f"{', '.join(known[:-1])} and {known[-1]}"
        raise InvalidRequest(f"line {number} has the unknown key '{unknown[0]}': known are {names}")


def read_records(
    lines: Iterable[str], parse: Callable[[str, int], RecordT]
) -> Iterator[RecordT | InvalidRequest]:
    """Each line's record, or what is wrong with it; empty lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield parse(line, number)
            except InvalidRequest as error:
                yield error
