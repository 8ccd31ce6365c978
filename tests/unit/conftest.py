"""Fixtures of several unit tests."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny checkpoint of a family, made on first use."""
    from tests.support.decoding import checkpoint

    return cache(lambda family: checkpoint(family, tmp_path_factory.mktemp("checkpoint")))
