"""Docstrings open with a verb or a noun, and their examples run (CONTRIBUTING.md)."""

import doctest
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from hiscore.batching.batched_model import BatchPlan
from hiscore.batching.batcher import Batcher
from hiscore.decoding.engine.engine import DecodeEngine
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.layers.lm_head import LMHead
from hiscore.scoring.packing.packing import pack
from hiscore.scoring.requests.request import MultiItemPrompt
from tests.support.decode_worker import TINY, HashWorker
from tools.size import docstrings_of

ROOT = Path(__file__).resolve().parents[3]

OPENINGS = {"What", "How", "Whether", "Where", "Of", "As", "Those", "If"}
"""First words after which a reader does not yet know what is spoken of."""


def headless(source: str) -> list[str]:
    """First lines of docstrings that open with one of `OPENINGS`."""
    texts = [str(string.value) for string in docstrings_of(source)]
    return [
        text.strip().splitlines()[0] for text in texts if text.split()[:1] and text.split()[0] in OPENINGS
    ]


@pytest.mark.parametrize("folder", ["hiscore", "perf"])
def test_docstrings_open_with_a_noun_or_a_verb(folder: str) -> None:
    found = {
        path.relative_to(ROOT).as_posix(): lines
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (lines := headless(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("text", "is_headless"),
    [
        ("What a device has.", True),
        ("Whether it fits.", True),
        ("\n    Of pairs, how many.", True),
        ("Return what a device has.", False),
        ("Iffy words.", False),
        ("The pages of a sequence.", False),
    ],
)
def test_control_an_opening_is_noticed(text: str, is_headless: bool) -> None:
    below_a_function = f'def f():\n    """{text}"""\n'
    below_an_attribute = f'x = 3\n"""{text}"""\n'
    assert bool(headless(below_a_function)) == bool(headless(below_an_attribute)) == is_headless


class Doubler:
    """A `BatchedModel` whose jobs are numbers."""

    async_launch, between = False, 0

    def cost(self, job: int) -> int:
        return 1

    def plan(self) -> BatchPlan[int]:
        return BatchPlan(self.cost)

    def launch(self, jobs: list[int]) -> "Iterator[Doubled]":
        yield Doubled([2 * job for job in jobs])

    def join(self, job: int, answers: Sequence[int]) -> int:
        raise AssertionError("jobs are never divided")

    def on_failure(self, error: Exception) -> None:
        raise error


class Doubled(NamedTuple):
    answers: list[int]

    def finish(self) -> list[int]:
        return self.answers

    def count(self) -> None:
        pass


class Answers:
    """A `Caller` that keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def send(self, answer: Any) -> None:
        self.sent.append(answer)

    def is_cancelled(self) -> bool:
        return False


def of_batcher() -> dict[str, Any]:
    return {"doubler": Doubler(), "answers": Answers(), "math": math}


def of_engine() -> dict[str, Any]:
    worker = HashWorker(TINY)
    return {"worker": worker, "outputs": [], "np": np, "math": math, "SamplingParams": SamplingParams}


EXAMPLES: dict[Any, Callable[[], dict[str, Any]]] = {
    MultiItemPrompt: dict,
    pack: dict,
    LMHead: dict,
    Batcher: of_batcher,
    DecodeEngine: of_engine,
}
"""Makers of the names that each example knows: another run knows nothing of what the last one left."""


@pytest.mark.parametrize("documented", EXAMPLES, ids=lambda documented: documented.__name__)
def test_the_example_of_a_public_class_runs(documented: Any) -> None:
    names = EXAMPLES[documented]()
    (example,) = doctest.DocTestFinder(recurse=False).find(documented, extraglobs=names)
    assert example.examples, f"{documented.__name__} shows no example"
    said: list[str] = []
    results = doctest.DocTestRunner().run(example, out=said.append)
    assert results.failed == 0, "".join(said)


def test_control_an_example_that_is_wrong_is_noticed() -> None:
    def wrong() -> None:
        """
        >>> 1 + 1
        3
        """

    (example,) = doctest.DocTestFinder().find(wrong, "wrong")
    assert doctest.DocTestRunner().run(example, out=lambda text: None).failed == 1
