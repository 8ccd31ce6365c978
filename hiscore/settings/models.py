"""What each model reads: one JSON parameter, ``settings``, in its ``config.pbtxt``."""

import json
from typing import Any, TypeVar

from pydantic import PositiveInt

from hiscore.settings.choices import Selector
from hiscore.settings.groups import (
    CacheSettings,
    Limits,
    LogSettings,
    Precision,
    QueueSettings,
    ScoringSettings,
    TextLimit,
)

PARAMETER = "settings"


class ModelSettings(QueueSettings, LogSettings):
    """Settings of every model."""

    checkpoint: str
    """Its directory, resolved by the launcher."""


class TokenizerSettings(Limits, ModelSettings):
    """Settings of the `tokenizer` model."""


class ScorerSettings(ScoringSettings, Precision, Limits, ModelSettings):
    """Settings of the `scorer` model."""

    max_batch_tokens: PositiveInt
    """Of its device: the launcher has chosen where the setting is not set."""


class DecodeSettings(CacheSettings, Precision, TextLimit, ModelSettings):
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


def from_model_config(settings: type[AnySettings], model_config: str) -> AnySettings:
    """Read a model's settings from Triton's ``args["model_config"]``.

    Args:
        settings: The class to read.
        model_config: Triton's JSON of ``config.pbtxt``.

    Raises:
        ValueError: ``settings`` is not the only parameter, or a key is unknown, missing or out of bounds.
    """
    parameters: dict[str, Any] = json.loads(model_config).get("parameters", {})
    if set(parameters) != {PARAMETER}:
        raise ValueError(f"config.pbtxt must have the one parameter '{PARAMETER}', not {sorted(parameters)}")
    text = parameters[PARAMETER]["string_value"]
    missing = sorted(set(settings.model_fields) - set(json.loads(text)))
    if missing:
        raise ValueError(f"the parameter '{PARAMETER}' lacks '{missing[0]}'")
    return settings.model_validate_json(text, strict=True)
