from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from perf.decoding.arms import shared_weights
from perf.models import random_checkpoint


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Use one thread: on a busy machine, tiny products cost more to distribute than to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with shared_weights():
        yield random_checkpoint.write_config("tiny", tmp_path_factory.mktemp("tiny"), context=512)
