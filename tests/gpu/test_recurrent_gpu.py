"""Tests of tests/unit/decoding/worker/test_recurrent.py on a GPU, with the GPU's own queues."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decoding import build, checkpoint
from tests.unit.decoding.worker import test_recurrent
from tests.unit.decoding.worker.test_recurrent import (  # noqa: F401
    FAMILY,
    alone,
    test_a_preempted_sequence_keeps_its_state,
    test_a_shared_beginning_is_found_by_the_third_prompt,
    test_greedy_tokens_through_an_engine_are_those_of_transformers,
    test_join_and_leave_at_every_step_changes_no_sequence,
    truth,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


@pytest.fixture(autouse=True)
def _own_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_recurrent, "late", lambda worker: worker)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda family: checkpoint(family, tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="module")
def make(path: Callable[[str], Path]) -> Callable[..., CacheWorker]:
    def get(selector: str = "exact", top_k: int = 16, buffer: int = 24, **settings: Any) -> CacheWorker:
        given = {"dtype": torch.float32, "chunk": 64, "dense_layers": 0, "device": "cuda", **settings}
        return build(path(FAMILY), selector, top_k, buffer, **given)

    return get
