"""Answers to questions about a state: distributions over each question's own options, from one scoring call."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hiscore.api.decisions.calibration import Temperatures
from hiscore.api.http.encoding import off_loop
from hiscore.api.http.errors import bad_request
from hiscore.api.models import Models
from hiscore.api.wire import Ignored, Request
from hiscore.prompts.cannot_encode import CannotEncode
from hiscore.prompts.chat import PromptError
from hiscore.prompts.decisions import DecisionPrompter, Message, Question
from hiscore.prompts.token_limits import TooMuchText

Float64: TypeAlias = npt.NDArray[np.float64]
MAX_QUESTIONS = 400
MAX_OPTIONS = 255
MAX_LEVELS = 10
MAX_ROTATIONS = 10_000
"""Prompts of one call whose options are rotated."""
LEAST_MASS = 1e-30
"""Below this, probabilities over the whole vocabulary are too few bits of float32 to be compared."""


class AskingRequest(Request):
    """A request with questions; `debias` and `calibrated` are this server's own."""

    debias: Literal["rotations"] | None = None
    calibrated: bool = True
    prompt_cache_key: Ignored = None
    safety_identifier: Ignored = None


@dataclass(frozen=True)
class OptionProbabilities:
    """The answer to one question.

    The `probabilities` of its options add up to 1; `label_mass` is the probability, over the whole vocabulary,
    that the model answers with one of the labels.
    """

    probabilities: list[float]
    label_mass: float

    @property
    def best(self) -> int:
        """The likeliest option; of equal ones the first."""
        return self.probabilities.index(max(self.probabilities))

    @property
    def expected(self) -> float:
        """The mean of the options' numbers, from 0."""
        return sum(index * p for index, p in enumerate(self.probabilities))

    @property
    def confidence(self) -> float:
        """The likeliest option's distance above chance: 0 if all are equally likely, 1 if it is certain."""
        chance = 1 / len(self.probabilities)
        return min(max((max(self.probabilities) - chance) / (1 - chance), 0.0), 1.0)


@dataclass(frozen=True)
class Decisions:
    """The answers of a call, in the order of its questions.

    `prompt_tokens` counts what prompts share once; `cached_tokens` of them came from a cache.
    """

    answers: list[OptionProbabilities]
    prompt_tokens: int
    cached_tokens: int


class Decider:
    """Answers questions with a causal LM, and refuses all without a `prompter`.

    Logits of calibrated answers are divided by `temperatures`, by the kind of question. Once their options are
    rotated, all questions may have `max_characters` together.
    """

    def __init__(
        self,
        models: Models,
        prompter: DecisionPrompter | None,
        temperatures: Temperatures,
        max_characters: int,
    ) -> None:
        self._models, self._prompter, self._temperatures = models, prompter, temperatures
        self._max_characters = max_characters

    async def decide(
        self,
        state: Sequence[Message],
        questions: Sequence[Question],
        request_id: str,
        rotate: bool = False,
        calibrated: bool = True,
    ) -> Decisions:
        """Answer questions; `rotate` asks each choice once for every option that can be first, and averages."""
        if self._prompter is None:
            raise bad_request(
                "this model answers no questions: it needs a causal LM, a tokenizer and a usable chat template"
            )
        shifts = [self._shifts(question, rotate) for question in questions]
        if rotate:
            self._check_rotations(questions, shifts)
        asked = [
            question.rotated(shift) for question, own in zip(questions, shifts, strict=True) for shift in own
        ]
        try:
            make = partial(self._prompter.ids, state, asked)
            made = await off_loop(make, self._prompter.characters(state, asked))
        except (PromptError, CannotEncode, TooMuchText) as error:
            raise bad_request(f"this request cannot become prompts: {error}") from None
        counts = [len(own) for own in made.label_ids]
        score = partial(self._models.score_ids, made.prompts.query, request_id=request_id)
        result = await score(
            made.prompts.items, [label for own in made.label_ids for label in own], label_counts=counts
        )
        scores = result.scores.astype(np.float64)
        masses = scores.sum(axis=1)
        if len(faint := np.flatnonzero(masses < LEAST_MASS)):
            labels = [label for row in faint for label in made.label_ids[row]]
            again = await score(
                [made.prompts.items[row] for row in faint],
                labels,
                label_counts=[counts[row] for row in faint],
                apply_softmax=True,
            )
            scores[faint] = 0
            scores[faint, : again.scores.shape[1]] = again.scores
        shares = scores / scores.sum(axis=1, keepdims=True)
        answers, row = [], 0
        for question, own in zip(questions, shifts, strict=True):
            rows = slice(row, row := row + len(own))
            temperature = self._temperatures.get(question.kind, 1.0) if calibrated else 1.0
            answers.append(_average(shares[rows, : len(question.options)], masses[rows], own, temperature))
        return Decisions(answers, result.usage.prompt_tokens, result.usage.cached_tokens)

    @staticmethod
    def _shifts(question: Question, rotate: bool) -> range:
        # The labels of other questions say what they mean, whatever their order.
        return range(len(question.options) if rotate and question.kind == "choice" else 1)

    def _check_rotations(self, questions: Sequence[Question], shifts: Sequence[range]) -> None:
        prompts = sum(map(len, shifts))
        if prompts > MAX_ROTATIONS:
            raise bad_request(
                f"'debias' makes {prompts} prompts of these questions: at most {MAX_ROTATIONS}", "debias"
            )
        characters = sum(
            len(own) * question.characters for question, own in zip(questions, shifts, strict=True)
        )
        if characters > self._max_characters:
            raise bad_request(
                f"'debias' makes {characters} characters of these questions: at most {self._max_characters}",
                "debias",
            )


def _average(
    shares: Float64, masses: Float64, shifts: Sequence[int], temperature: float
) -> OptionProbabilities:
    """Average one question's distributions, [shifts, options], and the masses of its labels, [shifts]."""
    mean = shares[0]
    if len(shifts) > 1:
        mean = np.mean([np.roll(row, shift) for row, shift in zip(shares, shifts, strict=True)], axis=0)
        mean /= mean.sum()
    if temperature != 1.0:
        powers = (mean / mean.max()) ** (1 / temperature)
        mean = powers / powers.sum()
    mass = float(masses[0]) if len(shifts) == 1 else float(masses.mean())
    return OptionProbabilities(mean.tolist(), min(mass, 1.0))


def check_question_count(questions: Sequence[object] | Mapping[str, object]) -> None:
    """Refuse a request with no questions, or too many."""
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        raise bad_request(
            f"'questions' holds {len(questions)} questions: 1 to {MAX_QUESTIONS} can be asked", "questions"
        )


def check_option_count(options: Sequence[object] | Mapping[str, object], most: int, param: str) -> None:
    """Refuse a question with too few or too many options."""
    if not 2 <= len(options) <= most:
        raise bad_request(f"'{param}' holds {len(options)} options: 2 to {most} are needed", param)
