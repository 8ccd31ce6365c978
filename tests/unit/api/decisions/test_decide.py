"""From probabilities over the whole vocabulary to answers."""

import asyncio
from collections.abc import Sequence
from copy import copy
from functools import cache
from typing import Any

import numpy as np
import pytest

from hiscore.api.decisions.decide import AskingRequest, Decider, Decisions, OptionProbabilities
from hiscore.api.http.errors import ApiError
from hiscore.api.wire import ModelCall
from hiscore.checkpoint import resolve
from hiscore.prompts.decisions import DecisionPrompter, Message, Option, Question
from hiscore.prompts.token_limits import TokenLimits
from hiscore_client.results import ScoreResult, Usage

STATE = [Message("user", "a")]
QUESTION = Question("choice", "b?", [Option("c"), Option("d"), Option("e")])
PREDICATE = Question("predicate", "b.", [Option("Yes"), Option("No")])


class FakeModels:
    def __init__(self, *scores: Sequence[Sequence[float]]) -> None:
        self._scores = list(scores)
        self.asked: list[tuple[int, dict[str, Any]]] = []

    async def score_ids(
        self, query: Sequence[int], items: Sequence[Sequence[int]], labels: Sequence[int], **options: Any
    ) -> ScoreResult:
        self.asked.append((len(items), options))
        lengths = options.get("label_lengths") or [1] * len(labels)
        assert (sum(options["label_counts"]), sum(lengths)) == (len(lengths), len(labels))
        return ScoreResult(np.array(self._scores.pop(0), np.float32), Usage(7, 3), "id")


@cache
def prompter() -> DecisionPrompter:
    return DecisionPrompter(resolve(progress=False), TokenLimits(context=4_096, call=10_000))


def decide(models: FakeModels, questions: Sequence[Question], **options: Any) -> Decisions:
    decider = Decider(models, prompter(), {"choice": 2.0}, 1_000)  # type: ignore[arg-type]
    return asyncio.run(decider.decide(STATE, questions, ModelCall("id", "m"), AskingRequest(**options)))


@pytest.mark.slow
def test_all_questions_are_one_call() -> None:
    models = FakeModels([[0.1, 0.3, 0.0], [0.05, 0.01, 0.04]])
    found = decide(models, [PREDICATE, QUESTION], calibrated=False)
    assert models.asked == [(2, {"label_counts": [2, 3], "request_id": "id", "adapter": ""})]
    assert found.answers[0].probabilities == pytest.approx([0.25, 0.75])
    assert found.answers[1].probabilities == pytest.approx([0.5, 0.1, 0.4])
    assert [each.label_mass for each in found.answers] == pytest.approx([0.4, 0.1])
    assert (found.prompt_tokens, found.cached_tokens) == (7, 3)


@pytest.mark.slow
@pytest.mark.parametrize(("calibrated", "power"), [(False, 1 / 3), (True, 1 / 6)])
def test_a_checkpoints_own_temperature_holds_before_any_calibration(calibrated: bool, power: float) -> None:
    own = copy(prompter())
    own.temperature = 3.0
    decider = Decider(FakeModels([[0.1, 0.2, 0.3]]), own, {"choice": 2.0}, 1_000)  # type: ignore[arg-type]
    wish = AskingRequest(calibrated=calibrated)
    (found,) = asyncio.run(decider.decide(STATE, [QUESTION], ModelCall("id", "m"), wish)).answers
    powers = np.array([0.1, 0.2, 0.3]) ** power
    assert found.probabilities == pytest.approx(powers / powers.sum())


@pytest.mark.slow
def test_rotations_put_every_option_in_every_place() -> None:
    # A model that sees nothing but places.
    models = FakeModels([[0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [0.1, 0.2, 0.3], [0.3, 0.1, 0.0]])
    found = decide(models, [QUESTION, PREDICATE], debias="rotations")
    assert models.asked[0][0] == 4, "a predicate's answers have no order"
    assert found.answers[0].probabilities == pytest.approx([1 / 3] * 3)
    assert found.answers[1].probabilities == pytest.approx([0.75, 0.25])
    # A model that sees nothing but the options: the second prompt begins with the second option.
    models = FakeModels([[0.1, 0.2, 0.3], [0.2, 0.3, 0.1], [0.3, 0.1, 0.2]])
    found = decide(models, [QUESTION], debias="rotations", calibrated=False)
    assert found.answers[0].probabilities == pytest.approx([1 / 6, 2 / 6, 3 / 6])


def test_a_temperature_divides_the_logarithms() -> None:
    (found,) = decide(FakeModels([[0.1, 0.4, 0.0]]), [QUESTION]).answers
    assert found.probabilities == pytest.approx([1 / 3, 2 / 3, 0])
    (raw,) = decide(FakeModels([[0.1, 0.4, 0.0]]), [QUESTION], calibrated=False).answers
    assert raw.probabilities == pytest.approx([0.2, 0.8, 0])


def test_labels_too_faint_for_float32_are_compared_by_themselves() -> None:
    models = FakeModels([[0.1, 0.3, 0.0], [0.0, 1e-38, 0.0]], [[0.25, 0.5, 0.25]])
    found = decide(models, [PREDICATE, QUESTION], calibrated=False)
    assert models.asked[1] == (
        1,
        {"label_counts": [3], "apply_softmax": True, "request_id": "id", "adapter": ""},
    )
    assert found.answers[1].probabilities == pytest.approx([0.25, 0.5, 0.25])
    assert found.answers[1].label_mass == pytest.approx(0)
    assert found.answers[0].probabilities == pytest.approx([0.25, 0.75])


@pytest.mark.slow
@pytest.mark.parametrize("normalize", ["none", "tokens", "bytes"])
def test_options_own_texts_are_compared_by_the_sums_of_their_logarithms(normalize: str) -> None:
    texts = ["late", "rather late", "hopelessly too late to be of use"]
    question = Question("choice", "When?", [Option(text) for text in texts])
    # A predicate keeps its labels; 0 fills up its row.
    logs = np.array([[-2.0, -400.0, -430.0], [-1.0, -0.5, 0.0]])
    models = FakeModels(logs)
    found = decide(models, [question, PREDICATE], answer_by="texts", normalize=normalize, calibrated=False)
    ((_, options),) = models.asked
    lengths = options["label_lengths"]
    assert lengths[0] < lengths[1] < lengths[2]
    assert options["label_counts"] == [3, 2]
    assert options["log_scores"]
    by = {"none": [1] * 5, "tokens": lengths, "bytes": [*map(len, [*texts, "Yes", "No"])]}[normalize]
    for answer, row, sizes in zip(found.answers, logs, (by[:3], by[3:]), strict=True):
        powers = np.exp(row[: len(sizes)] / sizes)
        assert answer.probabilities == pytest.approx(powers / powers.sum())
    # Of the labels themselves, whatever they are divided by.
    assert [each.label_mass for each in found.answers] == pytest.approx(
        [np.exp(-2), np.exp(-1) + np.exp(-0.5)]
    )


def test_options_that_are_no_answers_are_refused_by_name() -> None:
    for texts, says in (
        (["a", " "], "the option '' is no answer"),
        (["a", " a\n"], "are the same tokens"),
        (["a", "b " * 5_000], "MAX_CONTEXT"),
    ):
        question = Question("choice", "", [Option(text) for text in texts])
        with pytest.raises(ApiError, match=says):
            decide(FakeModels(), [question], answer_by="texts")


def test_confidence_is_how_far_the_best_is_above_chance() -> None:
    assert OptionProbabilities([0.25] * 4, 1).confidence == 0
    assert OptionProbabilities([0, 1, 0], 1).confidence == 1
    assert OptionProbabilities([0.5, 0.25, 0.25], 1).confidence == pytest.approx(0.25)
    assert OptionProbabilities([0.2, 0.2, 0.6], 1).expected == pytest.approx(1.4)
    assert OptionProbabilities([0.4, 0.4, 0.2], 1).best == 0


def test_a_model_that_answers_no_questions_says_so() -> None:
    decider = Decider(FakeModels(), None, {}, 1)  # type: ignore[arg-type]
    with pytest.raises(ApiError, match="causal LM"):
        asyncio.run(decider.decide(STATE, [QUESTION], ModelCall("id", "m"), AskingRequest()))


def test_rotations_are_bounded() -> None:
    long = Question("choice", "x" * 400, QUESTION.options)
    with pytest.raises(ApiError, match="1209 characters"):
        decide(FakeModels(), [long], debias="rotations")
    decide(FakeModels([[0.1] * 3]), [long])
    wide = Question("choice", "", [Option(str(index)) for index in range(255)])
    with pytest.raises(ApiError, match="10200 prompts"):
        decide(FakeModels(), [wide] * 40, debias="rotations")
