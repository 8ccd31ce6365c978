"""Records to process in bulk, and what became of each: for the command line and for offline scoring."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from hiscore_client.errors import HiscoreError

RecordT = TypeVar("RecordT")
ResultT = TypeVar("ResultT")


@dataclass(frozen=True)
class ScoreRecord:
    """One scoring call.

    Args:
        id: Any JSON value of the caller's, repeated in the answer; None: none.
        labels: The labels of each item; None: those of the command.
    """

    query: str
    items: list[str]
    id: Any = None
    labels: list[list[str]] | None = None


@dataclass(frozen=True)
class Answer(Generic[RecordT, ResultT]):
    """The outcome of one record.

    Args:
        record: None if the input could not be parsed.
        outcome: The result, or why there is none.
    """

    record: RecordT | None
    outcome: ResultT | HiscoreError
