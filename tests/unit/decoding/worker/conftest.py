"""Workers and ranks that tests of several modules have in common."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hiscore.decoding.worker.worker import CacheWorker
from hiscore.parallel.leader import Ranks
from tests.support import decode_rank_work
from tests.support.decoding import build


@pytest.fixture(scope="module")
def ranks(request: pytest.FixtureRequest, ranks_of: Callable[[int], Ranks]) -> Ranks:
    """Two, or as many as a test asks for."""
    ranks = ranks_of(getattr(request, "param", 2))
    ranks.prepare(decode_rank_work.arrive)
    return ranks


# Family, tokens selected, tokens in the buffer.
SETTINGS = {
    "dense": ("gemma2", 16, 24),
    "quest": ("qwen3", 96, 96),
    "exact": ("llama-biased", 16, 24),
    "dsa": ("glm-shared", 16, 24),
}


@pytest.fixture(scope="module")
def workers(path: Callable[[str], Path]) -> Callable[..., CacheWorker]:
    """In float64, where matrix products over other numbers of rows change no choice of a token."""

    def get(selector: str, **settings: Any) -> CacheWorker:
        family, top_k, buffer = SETTINGS[selector]
        return build(path(family), selector, top_k, buffer, dtype=torch.float64, **settings)

    return get
