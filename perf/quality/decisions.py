"""How good answers of `/v1/decisions` are, through a running API and by transformers on the same prompts.

Multiple choice: questions of MMLU, their options as given and in reverse, with rotations and without.
Ratings: texts whose tone people have rated, by a score question of five levels and a predicate.

usage: python -m perf.quality.decisions --out DIR [--api URL] [--checkpoint DIR] [--texts N] [--rotated-every N]
           [--truth-every N]

The API must serve the checkpoint in float32: `make serve`, DEVICE=cpu. Quality does not depend on load.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from hiscore.arrays import Float64
from hiscore.checkpoint import resolve
from hiscore.prompts.decisions import DecisionPrompter, Message, Option, Question
from hiscore.prompts.token_limits import TokenLimits
from hiscore.settings import Limits
from hiscore_client.calibration import Outcome, fit_temperature, reliability
from hiscore_client.decisions_http import decide
from perf.quality.agreement import auc, spearman
from perf.quality.decision_tasks import MultipleChoice, Rated, multiple_choice, rated
from perf.script import arguments, write_json

CONTEXT = 8_192
GROUP = 20
"""Texts that are ranked together."""
LEVELS = ("very negative", "negative", "neutral", "positive", "very positive")
POSITIVE, TONE = "The tone of the text is positive.", "What is the tone of the text?"

Ask: TypeAlias = Callable[[str, Sequence[Question], bool], list[Float64]]
"""Answers questions about a text, with or without rotations: probabilities of each one's options."""


def served(url: str) -> Ask:
    """Through the API."""

    def body(question: Question) -> dict[str, Any]:
        asked: dict[str, Any] = {"type": question.kind, "instructions": question.instructions}
        if question.kind == "choice":
            asked["choices"] = [{"value": option.text} for option in question.options]
        if question.kind == "score":
            asked["levels"] = [{"label": option.text} for option in question.options]
        return asked

    def ask(state: str, questions: Sequence[Question], rotate: bool) -> list[Float64]:
        request: dict[str, Any] = {
            "input": state,
            "questions": list(map(body, questions)),
            "calibrated": False,
        }
        found = decide(url, {**request, "debias": "rotations"} if rotate else request)
        return [np.array(_probabilities(answer)) for answer in found["answers"]]

    return ask


def by_transformers(checkpoint: Path) -> Ask:
    """One prompt at a time, in float32."""
    prompter = DecisionPrompter(checkpoint, TokenLimits(CONTEXT, Limits().max_call_tokens))
    model = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.float32).eval()

    @torch.inference_mode()
    def answer(state: str, question: Question) -> Float64:
        (ids,) = prompter.tokenizer.encode([prompter.text([Message("user", state)], question)])
        labels = list(prompter.labels.of(question.kind, len(question.options)).ids)
        logits = model(torch.tensor([ids])).logits[0, -1, labels].double()
        found: Float64 = logits.softmax(0).numpy()
        return found

    def ask(state: str, questions: Sequence[Question], rotate: bool) -> list[Float64]:
        answers = []
        for question in questions:
            shifts = range(len(question.options) if rotate and question.kind == "choice" else 1)
            rows = [np.roll(answer(state, question.rotated(shift)), shift) for shift in shifts]
            answers.append(np.mean(rows, axis=0))
        return answers

    return ask


def choice_answers(ask: Ask, items: Sequence[MultipleChoice], rotate: bool) -> list[list[Float64]]:
    """Of each item the answer with its options as given, and with them in reverse."""
    found = []
    for item in items:
        options = [Option(text) for text in item.options]
        questions = [Question("choice", item.question, each) for each in (options, options[::-1])]
        given, turned = ask(f"A question about {item.subject}.", questions, rotate)
        found.append([given, turned[::-1]])
    return found


def choice_report(items: Sequence[MultipleChoice], answers: Sequence[Sequence[Float64]]) -> dict[str, Any]:
    """Accuracy, calibration, and how often the order of the options decides."""
    outcomes = [Outcome(given.tolist(), item.answer) for item, (given, _) in zip(items, answers, strict=True)]
    return {
        "questions": len(items),
        "accuracy": float(np.mean([np.argmax(each.probabilities) == each.answer for each in outcomes])),
        "ece": reliability(outcomes).error,
        "ece_calibrated": _held_out_error(outcomes),
        "flips_when_reversed": float(np.mean([one.argmax() != other.argmax() for one, other in answers])),
        "probability_moved_when_reversed": float(
            np.mean([np.abs(one - other).sum() / 2 for one, other in answers])
        ),
    }


def rating_answers(ask: Ask, texts: Sequence[Rated]) -> list[list[Float64]]:
    """Of each text the score and the predicate."""
    questions = [
        Question("score", TONE, list(map(Option, LEVELS))),
        Question("predicate", POSITIVE, [Option("Yes"), Option("No")]),
    ]
    return [ask(each.text, questions, False) for each in texts]


def rating_report(texts: Sequence[Rated], answers: Sequence[Sequence[Float64]]) -> dict[str, Any]:
    """How well the expected level ranks texts, and the predicate tells positive from negative."""
    ratings: Float64 = np.array([each.rating for each in texts])
    gains: Float64 = ratings + 4
    expected: Float64 = np.array([float(score @ np.arange(len(LEVELS))) for score, _ in answers])
    positive: Float64 = np.array([float(predicate[0]) for _, predicate in answers])
    outcomes = [
        Outcome(p.tolist(), int(rating <= 0)) for (_, p), rating in zip(answers, ratings, strict=True)
    ]
    return {
        "texts": len(texts),
        "ndcg_of_score": ndcg(expected, gains),
        "ndcg_of_predicate": ndcg(positive, gains),
        "ndcg_of_a_random_order": ndcg(np.random.default_rng(0).random(len(texts)), gains),
        "spearman_of_score": spearman(expected, ratings),
        "spearman_of_predicate": spearman(positive, ratings),
        "auc_of_predicate": auc(positive, ratings > 0),
        "accuracy_of_predicate": float(np.mean((positive > 0.5) == (ratings > 0))),
        "ece_of_predicate": reliability(outcomes).error,
        "ece_of_predicate_calibrated": _held_out_error(outcomes),
    }


def ndcg(scores: Float64, gains: Float64) -> float:
    """Mean over groups of neighbours: the discounted gains of the order by score, over those of the best order."""
    found = []
    for start in range(0, len(scores) - GROUP + 1, GROUP):
        rows = slice(start, start + GROUP)
        discounts = 1 / np.log2(np.arange(GROUP) + 2)
        order = np.argsort(-scores[rows], kind="stable")
        found.append((gains[rows][order] @ discounts) / (np.sort(gains[rows])[::-1] @ discounts))
    return float(np.mean(found))


def _held_out_error(outcomes: Sequence[Outcome]) -> float:
    """ECE of each half at the temperature that was fitted on the other, by the size of the halves."""
    halves = outcomes[::2], outcomes[1::2]
    errors = [
        reliability(half, fit_temperature(other)).error * len(half) for half, other in (halves, halves[::-1])
    ]
    return sum(errors) / len(outcomes)


def _probabilities(answer: dict[str, Any]) -> list[float]:
    if answer["type"] == "predicate":
        return [answer["probability"], 1 - answer["probability"]]
    return [each["probability"] for each in answer["probabilities"]]


def _difference(served: Sequence[Sequence[Float64]], truth: Sequence[Sequence[Float64]]) -> float:
    """The largest difference of a probability."""
    pairs = (
        (a, b) for one, other in zip(served, truth, strict=True) for a, b in zip(one, other, strict=True)
    )
    return max(float(np.abs(a - b).max()) for a, b in pairs)


def main() -> None:
    """Measure."""
    parser = arguments(__doc__, "decisions.json")
    parser.add_argument("--api", default="http://localhost:8080")
    parser.add_argument("--checkpoint", type=Path)
    parser.add_argument("--rotated-every", type=int, default=1, help="ask every N-th question with rotations")
    parser.add_argument("--texts", type=int, default=400)
    parser.add_argument(
        "--truth-every", type=int, default=1, help="ask transformers every N-th of the served"
    )
    given = parser.parse_args()
    checkpoint = given.checkpoint or resolve()
    items, texts = multiple_choice(), rated(given.texts)
    rotated = items[:: given.rotated_every]
    tasks: dict[str, tuple[Any, Any, Any]] = {
        "choice": (items, lambda ask, some: choice_answers(ask, some, False), choice_report),
        "ratings": (texts, rating_answers, rating_report),
        "choice_rotations": (rotated, lambda ask, some: choice_answers(ask, some, True), choice_report),
    }
    by_api, truth = served(given.api), by_transformers(checkpoint)
    results: dict[str, Any] = {"model": checkpoint.name, "commit": given.commit}
    for task, (cases, answer, report) in tasks.items():
        started = time.perf_counter()
        found = answer(by_api, cases)
        checked = cases[:: given.truth_every]
        expected = answer(truth, checked)
        results[task] = {
            "served": report(cases, found),
            "served_same": report(checked, found[:: given.truth_every]),
            "transformers": report(checked, expected),
            "largest_difference": _difference(found[:: given.truth_every], expected),
            "answers": [[[round(float(p), 6) for p in each] for each in row] for row in found],
        }
        shown = {name: value for name, value in results[task].items() if name != "answers"}
        print(task, f"{time.perf_counter() - started:.0f} s", json.dumps(shown, indent=1), flush=True)
        write_json(given.out / "decisions.json", results)


if __name__ == "__main__":
    main()
