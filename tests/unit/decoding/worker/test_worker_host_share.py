"""Ranks that share the host pool of latents: each page is stored by one of them, and all get it from there."""

from functools import partial
from pathlib import Path

import pytest
import torch

from hiscore.parallel.leader import Ranks
from tests.support import decode_rank_work
from tests.support.decoding import build, checkpoint
from tests.support.tiers import first_of
from tests.unit.decoding.worker.test_worker_ranks import CALLS, SETTINGS, together, tokens

pytestmark = [pytest.mark.slow, pytest.mark.parametrize("ranks", first_of(2, 4), indirect=True)]

NAME = "latents, shared selections"
LONG = [{**each, "max_tokens": 40, "sparse": True} for each in CALLS[:4]]
"""Calls that are preempted and restored, and select what has long left their buffers."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(SETTINGS[NAME][0], tmp_path_factory.mktemp("shared"))


@pytest.fixture(scope="module")
def expected(path: Path) -> list[list[int]]:
    return tokens(build(path, *SETTINGS[NAME][1], dtype=torch.float64), LONG)


def test_all_ranks_together_store_what_one_would(ranks: Ranks, path: Path) -> None:
    alone = build(path, *SETTINGS[NAME][1], dtype=torch.float64)
    pool = alone._cache.host_kv
    together(ranks, path, NAME)
    stored = ranks.do(decode_rank_work.host_bytes)
    assert sum(stored) == pool.numel() * pool.element_size()
    assert max(stored) - min(stored) <= pool[:, 0].numel() * pool.element_size()


@pytest.mark.exhaustive
def test_what_a_rank_does_not_get_is_missed(ranks: Ranks, path: Path, expected: list[list[int]]) -> None:
    """The control: one rank attends to what it stores itself, and to zeros."""
    ranks.do(partial(decode_rank_work.keep_to_itself, which=1))
    try:
        assert tokens(together(ranks, path, NAME), LONG) != expected
    finally:
        ranks.do(decode_rank_work.merge_again)
    assert tokens(together(ranks, path, NAME), LONG) == expected


@pytest.mark.parametrize("which", [0, -1])
def test_all_read_what_one_stores(which: int, ranks: Ranks, path: Path, expected: list[list[int]]) -> None:
    """The control: a rank's share of the pool is spoiled on its way there, and nothing else is."""
    worker = together(ranks, path, NAME)
    ranks.do(partial(decode_rank_work.store_zeros, which=which % ranks.rank.shard.ranks))
    assert tokens(worker, LONG) != expected
