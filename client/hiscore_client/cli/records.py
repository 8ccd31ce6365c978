"""JSON Lines in and out: one record per line, and one line for its answer."""

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar

from hiscore_client.errors import HiscoreError, InvalidRequest
from hiscore_client.records import Answer, ResultT, ScoreRecord
from hiscore_client.results import ScoreResult


class HasId(Protocol):
    """A record; its ``id`` is any JSON value, repeated in the answer, or None."""

    @property
    def id(self) -> Any: ...


HasIdT = TypeVar("HasIdT", bound=HasId)


@dataclass(frozen=True)
class PromptRecord:
    """One call of ``hiscore generate``; the prompt is text or token ids."""

    prompt: str | list[int]
    id: Any = None


@dataclass(frozen=True)
class Completion:
    """All chunks of a generation joined; log-probabilities if they were asked for."""

    text: str
    token_ids: list[int]
    finish_reason: str
    request_id: str
    logprobs: list[float] | None = None
    top_token_ids: list[list[int]] | None = None
    top_logprobs: list[list[float]] | None = None


def to_json(answer: Answer[HasIdT, ResultT]) -> str:
    """Format an answer as one line of JSON: the result or an error, and the record's id if it has one."""
    line: dict[str, Any] = {}
    outcome = answer.outcome
    record_id = getattr(outcome, "record_id", None) if answer.record is None else answer.record.id
    if record_id is not None:
        line["id"] = record_id
    if isinstance(outcome, HiscoreError):
        line["error"] = {"type": type(outcome).__name__, "message": str(outcome)}
    elif isinstance(outcome, ScoreResult):
        line["scores"] = outcome.scores.tolist()
        line["usage"] = vars(outcome.usage)
        line["request_id"] = outcome.request_id
    elif isinstance(outcome, Completion):
        line |= {name: value for name, value in asdict(outcome).items() if value is not None}
    return json.dumps(line)


def parse_score_record(line: str, number: int) -> ScoreRecord:
    """Parse ``{"query": ..., "items": [...], "id": ..., "labels": [[...], ...]}``.

    The SDK and the server check the values; `labels` are those of each item, in place of the command's.

    Args:
        line: JSON.
        number: The line's number from 1, for messages.

    Raises:
        InvalidRequest: Not such an object.
    """
    values = _parse(line, number, "'query' and 'items'")
    for name, kind in (("query", str), ("items", list)):
        if not isinstance(values.get(name), kind):
            raise InvalidRequest(
                f"line {number} needs '{name}', a {'string' if kind is str else 'list of strings'}"
            )
    _check_keys(values, number, ("query", "items", "id", "labels"))
    labels = values.get("labels")
    if labels is not None and not (isinstance(labels, list) and all(isinstance(own, list) for own in labels)):
        raise InvalidRequest(f"line {number}: 'labels' must be a list with a list of labels for each item")
    return ScoreRecord(values["query"], values["items"], values.get("id"), labels)


def parse_prompt_record(line: str, number: int) -> PromptRecord:
    """Parse ``{"prompt": ..., "id": ...}``, as `parse_score_record`."""
    values = _parse(line, number, "'prompt'")
    if not isinstance(values.get("prompt"), str | list):
        raise InvalidRequest(f"line {number} needs 'prompt', a string or a list of token ids")
    _check_keys(values, number, ("prompt", "id"))
    return PromptRecord(values["prompt"], values.get("id"))


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
    lines: Iterable[str], parse: Callable[[str, int], HasIdT]
) -> Iterator[HasIdT | InvalidRequest]:
    """Yield each line's record, or why it cannot be parsed; blank lines are skipped."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                yield parse(line, number)
            except InvalidRequest as error:
                with suppress(ValueError, AttributeError):  # no JSON, no object
                    error.record_id = json.loads(line).get("id")
                yield error
