"""Prompts that begin alike, on several ranks: all of them find what was kept, and attend to it."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.decoding.worker.parallel_worker import ParallelWorker
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.parallel.leader import Ranks
from tests.support import decode_rank_work
from tests.support.decode_client import serving
from tests.support.decoding import build, checkpoint, prompt
from tests.unit.decoding.worker.test_worker_ranks import with_a_head_for_each_rank

pytestmark = pytest.mark.exhaustive

START = prompt(150)
LATER = np.concatenate((START[:130], prompt(10, seed=2)))  # shares four blocks of 32
FEW, ALL = (16, 24), (256, 256)
"""Tokens selected, and in the buffer: less than a prompt, or more than a sequence ever has."""
FAMILIES = {
    "llama-biased": "exact", "qwen3-moe": "dense", "glm-alternating": "dsa", "qwen3": "auto",
}  # fmt: skip
CACHING: dict[str, Any] = {"prefix_cache": True, "chunk": 64}


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request: pytest.FixtureRequest, ranks_of: Callable[[int], Ranks]) -> Ranks:
    ranks = ranks_of(request.param)
    ranks.prepare(decode_rank_work.arrive)
    return ranks


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Indexers that may select as many tokens as the settings say."""
    directory = tmp_path_factory.mktemp("prefixes")
    return {name: checkpoint(name, directory, index_topk=ALL[0]) for name in FAMILIES}


def together(ranks: Ranks, path: Path, given: tuple[Any, ...], late: int | None = None) -> ParallelWorker:
    work = partial(decode_rank_work.build_on, path=path, late=late, deaf=False, given=given, **CACHING)
    ranks.prepare(work)
    return ParallelWorker(ranks)


def answers(worker: CacheWorker | ParallelWorker, cached: int) -> list[list[int]]:
    """The tokens of two prompts in turn, the second of which begins like the first."""
    with serving(worker) as client:
        outcomes = []
        for each in (START, LATER):
            outcomes.append(client.submit(each, 12, sparse=True))
            client.wait(outcomes)
        assert client.stats.cached_tokens == cached
    assert [outcome.end for outcome in outcomes] == ["length"] * 2
    return [outcome.tokens for outcome in outcomes]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("selected", [FEW, ALL], ids=["few", "all"])
def test_a_prefix_that_was_found_comes_from_all_ranks(
    family: str, selected: tuple[int, int], ranks: Ranks, paths: dict[str, Path]
) -> None:
    if FAMILIES[family] == "auto" and selected is FEW:
        selected = (96, 96)  # its ring is always selected
    given, path = (FAMILIES[family], *selected), paths[family]
    whole = with_a_head_for_each_rank(path, ranks.rank.shard.ranks)
    right = answers(build(whole, *given, dtype=torch.float64, chunk=64), cached=0)
    assert answers(together(ranks, path, given, late=1), cached=128) == right
    # The control: what one rank has kept is spoiled before it is found.
    spoiled = together(ranks, path, given)
    ranks.do(partial(decode_rank_work.spoil_what_is_kept, which=1))
    with pytest.raises(AssertionError):
        assert answers(spoiled, cached=128)[1] == right[1]
