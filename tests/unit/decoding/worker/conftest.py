"""Ranks that tests of several modules have in common."""

from collections.abc import Iterator

import pytest
import torch

from hiscore.parallel.leader import Ranks
from tests.support import decode_rank_work


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    """Two, with what decoding imports."""
    with Ranks([torch.device("cpu")] * 2) as ranks:
        ranks.prepare(decode_rank_work.arrive)
        yield ranks
