import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from pathlib import Path

import pytest
import torch

from hiscore.parallel.leader import Ranks

if "TRITON_INTERPRET" in os.environ:
    from tests.support.interpreter import patch_once_for_a_launch

    patch_once_for_a_launch()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    from tests.support.decoding import checkpoint

    return cache(lambda family: checkpoint(family, tmp_path_factory.mktemp("checkpoint")))


@pytest.fixture(scope="session")
def ranks_of() -> Iterator[Callable[[int], Ranks]]:
    """So many ranks on the CPU, which all tests share: to start them takes seconds, and a third of a GiB each.

    A test builds what it works with, and takes back what it changes in a rank's modules or group. Without xdist,
    PyTorch has fewer threads from the first one on.
    """
    with ExitStack() as started:
        yield cache(lambda count: started.enter_context(closing(Ranks([torch.device("cpu")] * count))))


@pytest.fixture
def fixed_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.support.fixed_sums import fix_sums

    fix_sums(monkeypatch)
