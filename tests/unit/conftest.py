"""Fixtures of several unit tests."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

if "TRITON_INTERPRET" in os.environ:
    from tests.support.interpreter import patch_once_for_a_launch

    patch_once_for_a_launch()


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A tiny checkpoint of a family, made on first use."""
    from tests.support.decoding import checkpoint

    return cache(lambda family: checkpoint(family, tmp_path_factory.mktemp("checkpoint")))
