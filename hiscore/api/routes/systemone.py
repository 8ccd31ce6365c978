"""``/v1/systemone``: a state and questions by name, answered by probabilities."""

from typing import Annotated, Any, Literal, TypeAlias

import msgspec

from hiscore.api.content import Json, only_text, text_of
from hiscore.api.decide import (
    MAX_LEVELS,
    MAX_OPTIONS,
    MAX_QUESTIONS,
    Decider,
    Distribution,
    check_option_count,
    check_question_count,
)
from hiscore.api.errors import bad_request
from hiscore.api.wire import Ignored, ModelNames, Request, stated
from hiscore.prompts.decisions import Message, Option, Question

MEDIA = ("assets", "images", "audio", "videos")
# Of questions without instructions.
WHICH, HOW_MUCH, IS_IT = "Which option fits best?", "Which level fits best?", "Is it so?"


class Asked(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """What all questions have."""

    instructions: Json | None = None


class NoulCriteria(msgspec.Struct, forbid_unknown_fields=True):
    """When the answer is yes, and when no."""

    true: Json | None = None
    false: Json | None = None


class NoulQuestion(Asked, tag="noul"):
    """Yes or no?"""

    criteria: NoulCriteria | None = None


class ChoiceQuestion(Asked, tag="choice"):
    """Which of these? A description for each, or null."""

    criteria: Annotated[dict[str, Json | None], stated(minProperties=2, maxProperties=MAX_OPTIONS)]


class ScoreQuestion(Asked, tag="score"):
    """How much? Levels begin with the lowest."""

    criteria: Annotated[list[Json], stated(minItems=2, maxItems=MAX_LEVELS)]


class BoxQuestion(Asked, tag="box"):
    """Where in an image? Refused."""


AnyQuestion: TypeAlias = NoulQuestion | ChoiceQuestion | ScoreQuestion | BoxQuestion


class SystemOneRequest(Request):
    """A state and questions; `debias` and `calibrated` are ours."""

    state: Json
    questions: Annotated[dict[str, AnyQuestion], stated(minProperties=1, maxProperties=MAX_QUESTIONS)]
    debias: Literal["rotations"] | None = None
    calibrated: bool = True
    assets: Any = None
    images: Any = None
    audio: Any = None
    videos: Any = None
    prompt_cache_key: Ignored = None
    safety_identifier: Ignored = None


class NoulAnswer(msgspec.Struct, tag="noul"):
    """How likely yes is."""

    noul: float
    label_mass: float


class ChoiceAnswer(msgspec.Struct, tag="choice", kw_only=True):
    """The likeliest option, and all of them."""

    choice: str
    confidence: float
    probabilities: dict[str, float]
    label_mass: float


class ScoreAnswer(msgspec.Struct, tag="score", kw_only=True):
    """The expected level, counted from 0, and all of them."""

    score: float
    confidence: float
    probabilities: dict[str, float]
    legend: dict[str, Json]
    label_mass: float


class SystemOneUsage(msgspec.Struct, kw_only=True):
    """Tokens; nothing is generated."""

    input_tokens: int
    output_tokens: int = 0
    input_tokens_details: dict[str, int]


class SystemOneResponse(msgspec.Struct):
    """Answers by the names of their questions."""

    model: str
    answers: dict[str, NoulAnswer | ChoiceAnswer | ScoreAnswer]
    usage: SystemOneUsage


async def systemone(
    request: SystemOneRequest, request_id: str, *, decider: Decider, names: ModelNames
) -> SystemOneResponse:
    """Answer the questions of a request.

    Raises:
        ApiError: The request cannot be served.
    """
    model = names.check(request.model)
    for field in MEDIA:
        if getattr(request, field):
            raise only_text(field, field)
    check_question_count(request.questions)
    questions = [_question(each, f"questions.{name}") for name, each in request.questions.items()]
    state = [Message("user", text_of(request.state, "state"))]
    found = await decider.decide(
        state, questions, request_id, rotate=request.debias is not None, calibrated=request.calibrated
    )
    answers = {
        name: _answer(asked, answer)
        for (name, asked), answer in zip(request.questions.items(), found.answers, strict=True)
    }
    usage = SystemOneUsage(
        input_tokens=found.prompt_tokens, input_tokens_details={"cached_tokens": found.cached_tokens}
    )
    return SystemOneResponse(model, answers, usage)


def _question(asked: AnyQuestion, param: str) -> Question:
    instructions = _text(asked.instructions, f"{param}.instructions")
    match asked:
        case NoulQuestion(criteria=criteria):
            yes = _text(criteria.true if criteria else None, f"{param}.criteria.true")
            no = _text(criteria.false if criteria else None, f"{param}.criteria.false")
            if not (instructions or yes or no):
                raise bad_request(f"'{param}' has neither instructions nor criteria", param)
            return Question("predicate", instructions or IS_IT, [Option("Yes", yes), Option("No", no)])
        case ChoiceQuestion(criteria=by_name):
            check_option_count(by_name, MAX_OPTIONS, f"{param}.criteria")
            options = [
                Option(name, _text(each, f"{param}.criteria.{name}")) for name, each in by_name.items()
            ]
            return Question("choice", instructions or WHICH, options)
        case ScoreQuestion(criteria=levels):
            check_option_count(levels, MAX_LEVELS, f"{param}.criteria")
            options = [Option(_text(each, f"{param}.criteria[{index}]")) for index, each in enumerate(levels)]
            return Question("score", instructions or HOW_MUCH, options)
    raise only_text(param, "box")


def _text(content: Json | None, param: str) -> str:
    return "" if content is None else text_of(content, param)


def _answer(asked: AnyQuestion, found: Distribution) -> NoulAnswer | ChoiceAnswer | ScoreAnswer:
    mass, probabilities = found.label_mass, found.probabilities
    match asked:
        case ChoiceQuestion(criteria=by_name):
            return ChoiceAnswer(
                choice=list(by_name)[found.best],
                confidence=found.confidence,
                probabilities=dict(zip(by_name, probabilities, strict=True)),
                label_mass=mass,
            )
        case ScoreQuestion(criteria=levels):
            return ScoreAnswer(
                score=found.expected,
                confidence=found.confidence,
                probabilities={str(index): p for index, p in enumerate(probabilities)},
                legend={str(index): level for index, level in enumerate(levels)},
                label_mass=mass,
            )
    return NoulAnswer(probabilities[0], mass)
