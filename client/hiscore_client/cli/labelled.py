"""Labelled JSON Lines: requests of `/v1/decisions` with the right answer in each question."""

import json
from dataclasses import dataclass
from typing import Any

from hiscore_client.calibration import Outcome
from hiscore_client.errors import InvalidRequest, ServerFault

TYPES = ("predicate", "choice", "score")


@dataclass(frozen=True)
class Labelled:
    """One line.

    Attributes:
        request: Without the answers.
        answers: Of each question, the number of the right option.
        id: None, since lines are not answered one by one.
    """

    request: dict[str, Any]
    answers: list[int]
    id: Any = None


def parse_labelled(line: str, number: int) -> Labelled:
    """Parse a line.

    Args:
        line: JSON.
        number: The line's number from 1, for messages.

    Raises:
        InvalidRequest: It is no such request, or an answer is none of its question's.
    """
    try:
        request = json.loads(line)
        questions = request["questions"]
        answers = [
            _right(question, f"line {number}, question {index}") for index, question in enumerate(questions)
        ]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise InvalidRequest(f"line {number} must be a request with 'input' and 'questions'") from None
    asked = [{key: value for key, value in question.items() if key != "answer"} for question in questions]
    return Labelled({**request, "questions": asked}, answers)


def outcomes_of(record: Labelled, response: dict[str, Any]) -> list[tuple[str, Outcome]]:
    """The right answers of a record, each with the type of its question.

    Raises:
        ServerFault: They are not those of its questions.
    """
    outcomes = []
    try:
        for answer, right in zip(response["answers"], record.answers, strict=True):
            kind = answer["type"]
            if kind == "predicate":
                probabilities = [answer["probability"], 1 - answer["probability"]]
            else:
                probabilities = [each["probability"] for each in answer["probabilities"]]
            outcomes.append((kind, Outcome(probabilities, right)))
    except (KeyError, TypeError, ValueError):
        raise ServerFault("the API's answer is not one of /v1/decisions") from None
    return outcomes


def _right(question: dict[str, Any], where: str) -> int:
    """The number of the right option: a predicate's first is yes."""
    kind, answer = question["type"], question.get("answer")
    if kind == "predicate" and isinstance(answer, bool):
        return 0 if answer else 1
    if kind == "choice":
        # True is 1 in Python, but neither is "1" or "true".
        values = [(type(each["value"]), each["value"]) for each in question["choices"]]
        if (type(answer), answer) in values:
            return values.index((type(answer), answer))
    if kind == "score" and type(answer) is int and 0 <= answer < len(question["levels"]):
        return answer
    raise InvalidRequest(
        f"{where}: 'answer' must be true or false for a predicate, a value for a choice, a level's number for a "
        f"score, not {json.dumps(answer)[:60]}"
    )
