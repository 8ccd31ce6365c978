"""Rules about a config.json: each says why it cannot be computed, or nothing.

Nothing here imports torch: the launcher applies them before anything heavy is loaded.
"""

from collections.abc import Callable, Mapping
from typing import Any

Config = Mapping[str, Any]
Rule = Callable[[Config], str | None]
"""Looks at a config.json; returns why it cannot be computed, or None."""


def key_rule(name: str, implemented: Callable[[Any], bool], reason: str) -> Rule:
    """A rule about one key of config.json.

    Args:
        name: The key. Where it is missing the family's default holds, which must be implemented.
        implemented: Whether a value of the key is computed.
        reason: Message for any other value, which replaces `{value}`.
    """

    def rule(config: Config) -> str | None:
        if name not in config or implemented(config[name]):
            return None
        return reason.format(value=config[name])

    return rule


def one_of(*values: object) -> Callable[[Any], bool]:
    """For `key_rule`: the value is one of `values`."""
    return lambda value: value in values


def unset(value: object) -> bool:
    """For `key_rule`: the value is null, false, zero or empty."""
    return not value


def model_class_rule(*suffixes: str, reason: str) -> Rule:
    """The model class must end in one of `suffixes`."""

    def rule(config: Config) -> str | None:
        architecture = (config.get("architectures") or ["none"])[0]
        return None if architecture.endswith(suffixes) else f"architecture '{architecture}' {reason}"

    return rule


def rope_type_rule(*implemented: str) -> Rule:
    """All rope types of a config, which may have one for each kind of layer, must be `implemented`."""

    def rule(config: Config) -> str | None:
        rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
        variants = [value for value in rope.values() if isinstance(value, dict)] or [rope]
        present = {str(variant.get("rope_type", variant.get("type", "default"))) for variant in variants}
        for rope_type in sorted(present - set(implemented)):
            return f"rope type '{rope_type}' is none of {', '.join(implemented)}"
        return None

    return rule
