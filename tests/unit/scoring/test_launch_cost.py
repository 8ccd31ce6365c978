"""What the host does to launch a batch as on CUDA: bounds, so that it cannot creep up unseen."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

pytest.importorskip("triton", reason="the Triton language is not installed")

from torch.utils._python_dispatch import TorchDispatchMode

from hiscore.device.copies import PinnedArrays, Uploads
from hiscore.scoring import computation
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results import head_results
from hiscore.scoring.scorer import Scorer
from tests.support.cuda_runner import use_cuda_runner
from tests.support.strategies import random_tokens
from tests.support.tiny_models import VOCABULARY

ROWS = 128


class HostWork(TorchDispatchMode):
    """Counts the operations that the host dispatches but for those that launch nothing: views, and new memory."""

    def __init__(self) -> None:
        super().__init__()
        self.launched: Counter[str] = Counter()
        self.uploads = self.replayed = 0
        self._on_device = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket._qualified_op_name
        if not (self._on_device or func.is_view or name in ("aten::empty", "aten::new_empty")):
            self.launched[name] += 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """What a replayed graph computes costs the host nothing."""
        self._on_device = True
        self.replayed += 1
        yield
        self._on_device = False


def call(
    seed: int, query: int, items: list[int], labels: tuple[int, ...] = (5, 77), **options: Any
) -> ScoreRequest:
    tokens = random_tokens(np.random.default_rng(seed), query, items, VOCABULARY)
    return ScoreRequest.of(tokens.prompt(), np.array(labels, np.int32), ScoreOptions(**options))


SOFTMAX = {"apply_softmax": True}
BATCHES = {
    "one call": [call(1, 13, [7, 7, 3], **SOFTMAX)],
    "many calls alike": [call(seed, 5, [9, 6], **SOFTMAX) for seed in range(6)],
    "one item": [call(1, 13, [7], **SOFTMAX)],
    "many of one item": [call(seed, 5, [9], **SOFTMAX) for seed in range(8)],
    "the whole vocabulary": [call(seed, 5, [9, 6]) for seed in range(4)],
    "of all kinds": [
        call(1, 5, [9], **SOFTMAX),
        call(2, 5, [9, 6], **SOFTMAX),
        call(3, 5, [9, 6], (1, 2, 3), **SOFTMAX),
        call(4, 5, [9, 6]),
        call(5, 5, [9], (1, 2, 3)),
        call(6, 5, [9, 6], (1, 2, 3), label_counts=(1, 2)),
    ],
}

BOUNDS = {
    "one call": 4,
    "many calls alike": 4,
    "one item": 13,
    "many of one item": 13,
    "the whole vocabulary": 11,
    "of all kinds": 41,
}
"""Launches, as many for any number of calls of these kinds: what copies the inputs into place, and the head.
Of them 6 add up the 64 products of a pair, by halves."""


COPIES = {"of all kinds": 2}
"""Of arrays to the device: the forward's, and the head's if it does not keep them from the batch before."""


def launch(scorer: Scorer, work: HostWork, batch: list[ScoreRequest]) -> None:
    work.launched.clear()
    work.uploads = work.replayed = 0
    with work:
        scorer.submit(batch)


@pytest.fixture
def launched(checkpoints, monkeypatch: pytest.MonkeyPatch) -> tuple[Scorer, HostWork]:
    """A scorer that launches as on CUDA, and what its host does."""
    scorer, work = load_decoder_scorer(checkpoints("qwen3")[0], "cpu", "float32", ROWS), HostWork()
    use_cuda_runner(scorer, monkeypatch, ROWS, work.on_device)
    send, pinned = Uploads._send, PinnedArrays.pinned

    def counted(uploads: Uploads) -> Any:
        work.uploads += 1
        return send(uploads)

    def copied(arrays: PinnedArrays) -> Any:
        work.uploads += 1
        return pinned(arrays)

    monkeypatch.setattr(Uploads, "_send", counted)
    monkeypatch.setattr(PinnedArrays, "pinned", copied)
    return scorer, work


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_a_batch_is_few_copies_there_and_a_bounded_number_of_launches(name: str, launched) -> None:
    scorer, work = launched
    launch(scorer, work, BATCHES[name])  # small arrays and label rows are fetched once
    launch(scorer, work, BATCHES[name])
    assert work.uploads == COPIES.get(name, 1)
    assert work.launched.total() <= BOUNDS[name], work.launched


@pytest.mark.slow
def test_the_head_is_prepared_behind_the_forward(launched, monkeypatch: pytest.MonkeyPatch) -> None:
    scorer, work = launched
    seen: list[tuple[int, int]] = []
    prepare = head_results.head_results

    def prepared(*arguments: Any) -> Any:
        seen.append((work.replayed, work.uploads))
        return prepare(*arguments)

    monkeypatch.setattr(computation, "head_results", prepared)
    launch(scorer, work, BATCHES["of all kinds"])
    assert seen == [(2, 1)], "the layers' graph and the tail's, after the forward's own copy"


def test_control_what_is_launched_is_counted(launched) -> None:
    """Without graphs, all layers are."""
    scorer, work = launched
    scorer.runner._graphs.clear()
    launch(scorer, work, BATCHES["one call"])
    assert work.launched.total() > 5 * BOUNDS["one call"]


@pytest.mark.slow
def test_a_cached_query_and_each_forward_cost_a_copy_more(launched) -> None:
    scorer, work = launched
    launch(scorer, work, BATCHES["one call"])  # the labels' rows are fetched once
    long = call(1, 70, [7, 7], **SOFTMAX)
    launch(scorer, work, [long])
    assert work.uploads == 1
    launch(scorer, work, [long])
    assert work.uploads == 2, "the slots of what was found"
    launch(scorer, work, [call(2, 20, [90, 90], **SOFTMAX)])
    assert work.uploads == 3, "two forwards, and what the second reads of the first"
