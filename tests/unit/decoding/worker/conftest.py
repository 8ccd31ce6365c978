"""Ranks that tests of several modules have in common."""

from collections.abc import Callable

import pytest

from hiscore.parallel.leader import Ranks
from tests.support import decode_rank_work


@pytest.fixture(scope="module")
def ranks(ranks_of: Callable[[int], Ranks]) -> Ranks:
    ranks = ranks_of(2)
    ranks.prepare(decode_rank_work.arrive)
    return ranks
