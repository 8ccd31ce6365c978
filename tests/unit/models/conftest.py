"""Fixtures of tests that read many configs."""

import pytest
from transformers import PreTrainedConfig


@pytest.fixture
def short_reprs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Configs are shown without their keys.

    Where a key may have several types, transformers writes a message for each that does not fit, and drops them if
    another does. With a config inside a config, that takes five times as long as all the rest of such a test.
    """
    monkeypatch.setattr(PreTrainedConfig, "__repr__", object.__repr__)
