"""``/v1/decisions`` in OpenAI's body: typed questions about an input, answered by probabilities."""

from collections.abc import Iterator, Sequence
from typing import Annotated, TypeAlias

import msgspec

from hiscore.api.content import Part, text_of_parts
from hiscore.api.decisions import decide
from hiscore.api.decisions.decision_input import InputItem, messages_of
from hiscore.api.http.errors import bad_request
from hiscore.api.wire import SOME, Ignored, ModelCall, stated
from hiscore.prompts.decisions import Message, Option, Question

Value: TypeAlias = str | bool
YES_NO = (Option("Yes"), Option("No"))


class Asked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    instructions: str | list[Part]
    name: str | None = None


class PredicateQuestion(Asked, tag="predicate"):
    """Is it so?"""


class ChoiceOption(msgspec.Struct, forbid_unknown_fields=True):
    value: Value
    description: str | None = None


class ChoiceQuestion(Asked, tag="choice"):
    choices: Annotated[list[ChoiceOption], stated(minItems=2, maxItems=decide.MAX_OPTIONS)]


class Level(msgspec.Struct, forbid_unknown_fields=True):
    label: str
    description: str | None = None


class ScoreQuestion(Asked, tag="score"):
    """A question for a level; the lowest is first."""

    levels: Annotated[list[Level], stated(minItems=2, maxItems=decide.MAX_LEVELS)]


AnyQuestion: TypeAlias = PredicateQuestion | ChoiceQuestion | ScoreQuestion


class DecisionsRequest(decide.AskingRequest, kw_only=True):
    input: str | Annotated[list[InputItem], SOME]
    questions: Annotated[list[AnyQuestion], stated(minItems=1, maxItems=decide.MAX_QUESTIONS)]
    prompt_cache_options: Ignored = None


class PredicateAnswer(msgspec.Struct, tag="predicate", kw_only=True):
    name: str | None
    probability: float
    label_mass: float


class ValueProbability(msgspec.Struct):
    value: Value
    probability: float


class ChoiceAnswer(msgspec.Struct, tag="choice", kw_only=True):
    """The likeliest option, and all of them in the question's order."""

    name: str | None
    choice: Value
    confidence: float
    probabilities: list[ValueProbability]
    label_mass: float


class LevelProbability(msgspec.Struct):
    value: int
    label: str
    probability: float


class ScoreAnswer(msgspec.Struct, tag="score", kw_only=True):
    """The expected level, counted from 0, and all of them."""

    name: str | None
    score: float
    confidence: float
    probabilities: list[LevelProbability]
    label_mass: float


class DecisionsUsage(msgspec.Struct, kw_only=True):
    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int = 0
    output_tokens_details: dict[str, int]
    total_tokens: int


class DecisionsResponse(msgspec.Struct):
    model: str
    answers: list[PredicateAnswer | ChoiceAnswer | ScoreAnswer]
    usage: DecisionsUsage


async def decisions(decider: decide.Decider, request: DecisionsRequest, call: ModelCall) -> DecisionsResponse:
    decide.check_question_count(request.questions)
    _check_names(request.questions)
    questions = [_question(each, f"questions[{index}]") for index, each in enumerate(request.questions)]
    state = (
        messages_of(request.input) if isinstance(request.input, list) else [Message("user", request.input)]
    )
    found = await decider.decide(state, questions, call, request)
    answers = [_answer(*pair) for pair in zip(request.questions, found.answers, strict=True)]
    return DecisionsResponse(call.model, answers, decisions_usage(found))


def decisions_usage(found: decide.Decisions) -> DecisionsUsage:
    return DecisionsUsage(
        input_tokens=found.prompt_tokens,
        input_tokens_details={"cached_tokens": found.cached_tokens, "cache_write_tokens": 0},
        output_tokens_details={"reasoning_tokens": 0},
        total_tokens=found.prompt_tokens,
    )


def _check_names(questions: Sequence[AnyQuestion]) -> None:
    first: dict[str, int] = {}
    for index, question in enumerate(questions):
        if question.name is not None and first.setdefault(question.name, index) != index:
            raise bad_request(
                f"questions {first[question.name]} and {index} have the same name", f"questions[{index}].name"
            )


def _question(asked: AnyQuestion, param: str) -> Question:
    instructions = text_of_parts(asked.instructions, f"{param}.instructions")
    match asked:
        case ChoiceQuestion(choices=choices):
            decide.check_option_count(choices, decide.MAX_OPTIONS, f"{param}.choices")
            _check_distinct(((type(each.value), each.value) for each in choices), f"{param}.choices", "value")
            return Question("choice", instructions, _options(choices))
        case ScoreQuestion(levels=levels):
            decide.check_option_count(levels, decide.MAX_LEVELS, f"{param}.levels")
            _check_distinct((each.label for each in levels), f"{param}.levels", "label")
            return Question("score", instructions, [Option(x.label, x.description or "") for x in levels])
    return Question("predicate", instructions, YES_NO)


def _options(choices: Sequence[ChoiceOption]) -> list[Option]:
    """Write values as JSON where a boolean and its text are both there: true and "true"."""
    mixed = any(isinstance(each.value, bool) for each in choices)

    def text(value: Value) -> str:
        if isinstance(value, bool) or (mixed and value in ("true", "false")):
            return msgspec.json.encode(value).decode()
        return value

    return [Option(text(each.value), each.description or "") for each in choices]


def _check_distinct(values: Iterator[object], param: str, field: str) -> None:
    seen: set[object] = set()
    for index, value in enumerate(values):
        if value in seen:
            at = f"{param}[{index}].{field}"
            raise bad_request(f"'{at}' is that of an earlier option", at)
        seen.add(value)


def _answer(
    asked: AnyQuestion, found: decide.OptionProbabilities
) -> PredicateAnswer | ChoiceAnswer | ScoreAnswer:
    mass, probabilities = found.label_mass, found.probabilities
    match asked:
        case ChoiceQuestion(choices=choices):
            return ChoiceAnswer(
                name=asked.name,
                choice=choices[found.best].value,
                confidence=found.confidence,
                probabilities=[
                    ValueProbability(each.value, p) for each, p in zip(choices, probabilities, strict=True)
                ],
                label_mass=mass,
            )
        case ScoreQuestion(levels=levels):
            return ScoreAnswer(
                name=asked.name,
                score=found.expected,
                confidence=found.confidence,
                probabilities=[
                    LevelProbability(index, each.label, p)
                    for index, (each, p) in enumerate(zip(levels, probabilities, strict=True))
                ],
                label_mass=mass,
            )
    return PredicateAnswer(name=asked.name, probability=probabilities[0], label_mass=mass)
