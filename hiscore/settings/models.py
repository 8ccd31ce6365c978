"""The settings of each model: from the parameters of its ``config.pbtxt``, the environment, the defaults."""

import json
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from hiscore.settings.groups import (
    AdapterSettings,
    CacheSettings,
    CheckpointName,
    Computing,
    Limits,
    LogSettings,
    QueueSettings,
    SamplingSettings,
    ScoringSettings,
)

OF_TRITON = {"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS", "TRITON_BATCH_STRATEGY_PATH"}
"""Parameters of config.pbtxt that Triton reads itself."""


class ModelSettings(QueueSettings, LogSettings, CheckpointName, BaseSettings):
    """Settings of every model."""

    model_config = SettingsConfigDict(
        extra="forbid", frozen=True, env_ignore_empty=True, protected_namespaces=()
    )


class TokenizerSettings(AdapterSettings, Limits, ModelSettings):
    """Settings of the `tokenizer` model."""


class ScorerSettings(AdapterSettings, ScoringSettings, Computing, Limits, ModelSettings):
    """Settings of the `scorer` model."""

    @property
    def max_queue_tokens(self) -> int:
        """Tokens of all waiting and running calls before UNAVAILABLE: those of four of the largest calls."""
        return 4 * self.max_call_tokens


class DecodeSettings(CacheSettings, SamplingSettings, Computing, ModelSettings):
    """Settings of the `decode` model."""


MODEL_SETTINGS: dict[str, type[ModelSettings]] = {
    "tokenizer": TokenizerSettings,
    "scorer": ScorerSettings,
    "decode": DecodeSettings,
}
"""Models with their own process. The ensemble `score` has neither a process nor settings."""

AnySettings = TypeVar("AnySettings", bound=ModelSettings)


def read_settings(settings: type[AnySettings], config: Mapping[str, Any]) -> AnySettings:
    """Read a model's settings: each from the parameters of its config, else from the environment.

    Args:
        config: The model's configuration as Triton gives it to ``initialize``.

    Raises:
        ValueError: A parameter is no setting of this model, or a value is out of bounds.
    """
    given = {name: each["string_value"] for name, each in config.get("parameters", {}).items()}
    names = {name.upper(): name for name in settings.model_fields}
    if unknown := sorted(set(given) - set(names) - OF_TRITON):
        raise ValueError(f"parameter '{unknown[0]}' of config.pbtxt is none of {', '.join(sorted(names))}")
    try:
        return settings(**{names[name]: value for name, value in given.items() if value and name in names})
    except ValidationError as error:
        raise ValueError("; ".join(complaints(error))) from None


def variables(settings: type[ModelSettings], values: Mapping[str, Any]) -> dict[str, str]:
    """Write those of some values that a model reads, and that are not its defaults, as environment variables."""
    return {
        name.upper(): _written(values[name])
        for name, field in settings.model_fields.items()
        if name in values and values[name] != field.default
    }


def complaints(error: ValidationError) -> list[str]:
    """Say what is wrong with each setting, by the name that its user knows."""
    return [
        f"{'_'.join(map(str, each['loc'])).upper()}: {each['msg']}, not {each['input']!r}".replace(
            ": Value error, ", ": ", 1
        )
        for each in error.errors()
    ]


def _written(value: object) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)
