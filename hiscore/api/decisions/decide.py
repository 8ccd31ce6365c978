"""Answers to questions about a state: distributions over each question's own options, from one scoring call."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from hiscore.api.decisions.calibration import Temperatures
from hiscore.api.http.encoding import off_loop
from hiscore.api.http.errors import bad_request
from hiscore.api.models import Models
from hiscore.api.wire import Ignored, ModelCall, Request
from hiscore.prompts.answer_labels import Labels
from hiscore.prompts.chat import PromptError
from hiscore.prompts.decisions import DecisionPrompter, DecisionPrompts, Message, Question
from hiscore.prompts.token_limits import TooMuchText
from hiscore.tokenization.panics import CannotEncode
from hiscore_client import ScoreResult

Float64: TypeAlias = npt.NDArray[np.float64]
Score: TypeAlias = Callable[..., Awaitable[ScoreResult]]
MAX_QUESTIONS = 400
MAX_OPTIONS = 255
MAX_LEVELS = 10
MAX_ROTATIONS = 10_000
"""Prompts of one call whose options are rotated."""
LEAST_MASS = 1e-30
"""Below this, probabilities over the whole vocabulary are too few bits of float32 to be compared."""


class AskingRequest(Request):
    """A request with questions; the fields down to `normalize` are this server's own."""

    debias: Literal["rotations"] | None = None
    calibrated: bool = True
    answer_by: Literal["labels", "texts"] = "labels"
    normalize: Literal["none", "tokens", "bytes"] = "none"
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
        call: ModelCall,
        wish: AskingRequest,
    ) -> Decisions:
        """Answer questions; with rotations, each choice is asked once for every option that can be first."""
        if self._prompter is None:
            raise bad_request(
                "this model answers no questions: it needs a causal LM, a tokenizer and a usable chat template"
            )
        # The labels of other questions say what they mean, whatever their order.
        rotate = wish.debias is not None
        shifts = [range(len(each.options) if rotate and each.kind == "choice" else 1) for each in questions]
        if rotate:
            self._check_rotations(questions, shifts)
        if wish.answer_by == "texts":
            questions = [replace(each, by_text=each.kind != "predicate") for each in questions]
        asked = [
            question.rotated(shift) for question, own in zip(questions, shifts, strict=True) for shift in own
        ]
        try:
            make = partial(self._prompter.ids, state, asked)
            made = await off_loop(make, self._prompter.characters(state, asked))
        except (PromptError, CannotEncode, TooMuchText) as error:
            raise bad_request(f"this request cannot become prompts: {error}") from None
        query, score_ids = made.prompts.query, self._models.score_ids
        score = partial(score_ids, query, request_id=call.id, adapter=call.adapter)
        is_single = all(len(ids) == 1 for each in made.labels for ids in each.ids)
        read = _by_tokens if is_single and wish.normalize == "none" else partial(_by_logs, wish.normalize)
        shares, masses, result = await read(score, made)
        answers, row = [], 0
        for question, own in zip(questions, shifts, strict=True):
            rows = slice(row, row := row + len(own))
            temperature = self._temperatures.get(question.kind, 1.0) if wish.calibrated else 1.0
            temperature *= self._prompter.temperature
            answers.append(_average(shares[rows, : len(question.options)], masses[rows], own, temperature))
        return Decisions(answers, result.usage.prompt_tokens, result.usage.cached_tokens)

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


async def _by_tokens(score: Score, made: DecisionPrompts) -> tuple[Float64, Float64, ScoreResult]:
    """Score labels of one token each: shares, [questions, options], masses, [questions], and the call's result."""
    counts = [len(each.ids) for each in made.labels]
    result = await score(made.prompts.items, _flat(made.labels), label_counts=counts)
    scores = result.scores.astype(np.float64)
    masses = scores.sum(axis=1)
    if len(faint := np.flatnonzero(masses < LEAST_MASS)):
        again = await score(
            [made.prompts.items[row] for row in faint],
            _flat([made.labels[row] for row in faint]),
            label_counts=[counts[row] for row in faint],
            apply_softmax=True,
        )
        scores[faint] = 0
        scores[faint, : again.scores.shape[1]] = again.scores
    return scores / scores.sum(axis=1, keepdims=True), masses, result


async def _by_logs(
    normalize: str, score: Score, made: DecisionPrompts
) -> tuple[Float64, Float64, ScoreResult]:
    """Score labels of several tokens by the sums of their tokens' logarithms, like `_by_tokens`."""
    counts = [len(each.ids) for each in made.labels]
    lengths = [len(ids) for each in made.labels for ids in each.ids]
    options = {"label_counts": counts, "label_lengths": lengths, "log_scores": True}
    result = await score(made.prompts.items, _flat(made.labels), **options)
    logs = np.full(result.scores.shape, -np.inf)
    is_label = np.arange(logs.shape[1]) < np.array(counts)[:, None]
    logs[is_label] = result.scores[is_label]
    masses = np.exp(logs).sum(axis=1)
    if normalize != "none":
        texts = [text for each in made.labels for text in each.texts]
        logs[is_label] /= lengths if normalize == "tokens" else [len(text.encode()) for text in texts]
    powers = np.exp(logs - logs.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True), masses, result


def _flat(labels: Sequence[Labels]) -> list[int]:
    return [token for each in labels for ids in each.ids for token in ids]


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
    if not 1 <= len(questions) <= MAX_QUESTIONS:
        raise bad_request(
            f"'questions' holds {len(questions)} questions: 1 to {MAX_QUESTIONS} can be asked", "questions"
        )


def check_option_count(options: Sequence[object] | Mapping[str, object], most: int, param: str) -> None:
    if not 2 <= len(options) <= most:
        raise bad_request(f"'{param}' holds {len(options)} options: 2 to {most} are needed", param)
