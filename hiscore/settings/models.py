"""The settings of each model: one JSON file, ``settings.json``, beside its ``config.pbtxt``."""

import json
from pathlib import Path
from typing import TypeVar

from pydantic import PositiveInt

from hiscore.settings.choices import Selector
from hiscore.settings.groups import (
    CacheSettings,
    Division,
    Limits,
    LogSettings,
    Precision,
    QueueSettings,
    SamplingSettings,
    ScoringSettings,
    TextLimit,
)

MODEL_SETTINGS_FILE = "settings.json"


class ModelSettings(QueueSettings, LogSettings):
    """Settings of every model."""

    checkpoint: str
    """Its directory, resolved by the launcher."""


class TokenizerSettings(Limits, ModelSettings):
    """Settings of the `tokenizer` model."""


class ScorerSettings(ScoringSettings, Precision, Division, Limits, ModelSettings):
    """Settings of the `scorer` model."""

    max_batch_tokens: PositiveInt
    """A number for its device: the launcher has chosen one for `auto`."""
    takes_text: bool
    """True if `score` is loaded, which hands its texts to this model."""

    @property
    def max_queue_tokens(self) -> int:
        """Tokens of all waiting and running calls before UNAVAILABLE: those of four of the largest calls."""
        return 4 * self.max_call_tokens


class DecodeSettings(CacheSettings, SamplingSettings, Precision, Division, TextLimit, ModelSettings):
    """Settings of the `decode` model."""

    selector: Selector
    """One that the checkpoint has: the launcher has resolved ``auto``."""


MODEL_SETTINGS: dict[str, type[ModelSettings]] = {
    "tokenizer": TokenizerSettings,
    "scorer": ScorerSettings,
    "decode": DecodeSettings,
}
"""Models with their own process. The ensemble `score` has neither a process nor settings."""

AnySettings = TypeVar("AnySettings", bound=ModelSettings)


def from_model_directory(settings: type[AnySettings], directory: Path) -> AnySettings:
    """Read a model's settings from the file beside its ``config.pbtxt``, which callers can see over HTTP.

    Raises:
        ValueError: A key is unknown, missing or out of bounds.
    """
    text = (directory / MODEL_SETTINGS_FILE).read_text(encoding="utf-8")
    missing = sorted(set(settings.model_fields) - set(json.loads(text)))
    if missing:
        raise ValueError(f"{MODEL_SETTINGS_FILE} lacks '{missing[0]}'")
    return settings.model_validate_json(text, strict=True)
