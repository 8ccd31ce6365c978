"""A sequence that fails on one of several ranks, which must not go on with other tokens than the rest."""

import threading
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from hiscore.decoding.worker.parallel_worker import ParallelWorker
from hiscore.errors import Code, RequestError
from hiscore.parallel.leader import Ranks
from tests.support import decode_rank_work
from tests.support.decode_client import serving
from tests.support.decoding import checkpoint, prompt
from tests.unit.decoding.worker.test_worker_engine import Call
from tests.unit.decoding.worker.test_worker_ranks import SETTINGS

pytestmark = pytest.mark.exhaustive

CALLS: list[Call] = [
    # Penalties are no part of a forward's own choice of tokens.
    {"tokens": prompt(20 + number, seed=number), "max_tokens": 8, "presence_penalty": 0.5}
    for number in range(3)
]
WAIT_S = 60
AT = 5
"""The launch, a step of all three, in which the first row fails."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(SETTINGS["exact"][0], tmp_path_factory.mktemp("failing"))


def worker_on(ranks: Ranks, path: Path, failing: tuple[int, ...]) -> ParallelWorker:
    """A worker that lacks memory on some ranks."""
    given = SETTINGS["exact"][1]
    ranks.prepare(partial(decode_rank_work.build_on, path=path, late=None, deaf=False, given=given))
    ranks.prepare(partial(decode_rank_work.fail_to_sample, which=failing, at=AT))
    return ParallelWorker(ranks)


@pytest.mark.parametrize("failing", [(0,), (0, 1)])
def test_what_fails_on_the_first_rank_ends_its_own_sequence(failing: tuple[int, ...], path: Path) -> None:
    ended = threading.Event()
    with closing(Ranks([torch.device("cpu")] * 2, end=ended.set)) as ranks:
        found = []
        for which in ((), failing):
            with serving(worker_on(ranks, path, which)) as client:
                outcomes = [client.submit(**call) for call in CALLS]
                client.wait(outcomes)
            found.append(outcomes)
        assert not ended.is_set()
    expected, outcomes = found
    failed = [outcome for outcome in outcomes if isinstance(outcome.end, RequestError)]
    assert [outcome.end.code for outcome in failed if isinstance(outcome.end, RequestError)] == [
        Code.UNAVAILABLE
    ]
    for outcome, right in zip(outcomes, expected, strict=True):
        assert outcome.tokens == right.tokens[: len(outcome.tokens)]
        assert (outcome in failed) == (len(outcome.tokens) < len(right.tokens))


def test_a_failure_of_another_rank_ends_the_instance(path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The control: nothing else does, such as the same failure on both ranks."""
    ended = threading.Event()
    ranks = Ranks([torch.device("cpu")] * 2, end=ended.set)
    # The engine has lost its worker, and leaves things behind.
    with suppress(AssertionError), serving(worker_on(ranks, path, (1,))) as client:
        for call in CALLS:
            client.submit(**call)
        ended.wait(WAIT_S)
    ranks.close()
    assert ended.is_set()
    assert "sequences [0] have failed on this rank and not on the first" in capfd.readouterr().err
