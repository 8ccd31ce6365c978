"""``/v1/systemone``: the questions of ``/v1/decisions`` by name, in TypeSafe's body."""

from typing import Annotated, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from hiscore.api.content import Json, text_of
from hiscore.api.decisions import decide
from hiscore.api.decisions.decisions import DecisionsUsage, decisions_usage
from hiscore.api.http.errors import bad_request
from hiscore.api.wire import ModelCall, stated
from hiscore.prompts.decisions import Message, Option, Question


class NoulCriteria(msgspec.Struct, forbid_unknown_fields=True):
    true: Json | None = None
    false: Json | None = None


class Noul(msgspec.Struct, tag="noul", forbid_unknown_fields=True):
    instructions: Json | None = None
    criteria: NoulCriteria | None = None


class NamedOptions(msgspec.Struct, tag="choice", forbid_unknown_fields=True, kw_only=True):
    instructions: Json | None = None
    criteria: Annotated[dict[str, Json | None], stated(minProperties=2, maxProperties=decide.MAX_OPTIONS)]


class Scale(msgspec.Struct, tag="score", forbid_unknown_fields=True, kw_only=True):
    """A score; the lowest level is first."""

    instructions: Json | None = None
    criteria: Annotated[list[Json], stated(minItems=2, maxItems=decide.MAX_LEVELS)]


AnyNamedQuestion: TypeAlias = Noul | NamedOptions | Scale


class SystemOneRequest(decide.AskingRequest, kw_only=True):
    state: Json
    questions: Annotated[
        dict[str, AnyNamedQuestion], stated(minProperties=1, maxProperties=decide.MAX_QUESTIONS)
    ]


class SystemOneAnswer(msgspec.Struct, kw_only=True):
    """One answer; `noul`, `choice` or `score` by its type, and the options' probabilities except of a noul."""

    type: str
    noul: float | UnsetType = UNSET
    choice: str | UnsetType = UNSET
    score: float | UnsetType = UNSET
    confidence: float | UnsetType = UNSET
    probabilities: dict[str, float] | UnsetType = UNSET
    legend: dict[str, Json] | UnsetType = UNSET
    label_mass: float


class SystemOneResponse(msgspec.Struct):
    model: str
    answers: dict[str, SystemOneAnswer]
    usage: DecisionsUsage


async def systemone(decider: decide.Decider, request: SystemOneRequest, call: ModelCall) -> SystemOneResponse:
    decide.check_question_count(request.questions)
    questions = [_question(each, f"questions.{name}") for name, each in request.questions.items()]
    state = [Message("user", text_of(request.state, "state"))]
    found = await decider.decide(state, questions, call, request)
    answers = map(_answer, request.questions.values(), found.answers)
    return SystemOneResponse(
        call.model, dict(zip(request.questions, answers, strict=True)), decisions_usage(found)
    )


def _question(asked: AnyNamedQuestion, param: str) -> Question:
    instructions = _text(asked.instructions, f"{param}.instructions")
    match asked:
        case NamedOptions(criteria=by_name):
            decide.check_option_count(by_name, decide.MAX_OPTIONS, f"{param}.criteria")
            options = [
                Option(name, _text(each, f"{param}.criteria.{name}")) for name, each in by_name.items()
            ]
            return Question("choice", instructions, options)
        case Scale(criteria=levels):
            decide.check_option_count(levels, decide.MAX_LEVELS, f"{param}.criteria")
            options = [Option(_text(each, f"{param}.criteria[{index}]")) for index, each in enumerate(levels)]
            return Question("score", instructions, options)
    yes = _text(asked.criteria.true if asked.criteria else None, f"{param}.criteria.true")
    no = _text(asked.criteria.false if asked.criteria else None, f"{param}.criteria.false")
    if not (instructions or yes or no):
        raise bad_request(f"'{param}' has neither instructions nor criteria", param)
    return Question("predicate", instructions, [Option("Yes", yes), Option("No", no)])


def _text(content: Json | None, param: str) -> str:
    return "" if content is None else text_of(content, param)


def _answer(asked: AnyNamedQuestion, found: decide.OptionProbabilities) -> SystemOneAnswer:
    kind, mass = str(asked.__struct_config__.tag), found.label_mass
    if isinstance(asked, Noul):
        return SystemOneAnswer(type=kind, noul=found.probabilities[0], label_mass=mass)
    if isinstance(asked, NamedOptions):
        names = list(asked.criteria)
        answer = SystemOneAnswer(type=kind, choice=names[found.best], label_mass=mass)
    else:
        names = [str(index) for index in range(len(asked.criteria))]
        legend = dict(zip(names, asked.criteria, strict=True))
        answer = SystemOneAnswer(type=kind, score=found.expected, legend=legend, label_mass=mass)
    answer.confidence = found.confidence
    answer.probabilities = dict(zip(names, found.probabilities, strict=True))
    return answer
