"""Rules about a config.json: each says why it cannot be computed, or nothing.

Nothing here imports torch: the launcher applies them before anything heavy is loaded.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

Config = Mapping[str, Any]
Rule = Callable[[Config], str | None]
"""Looks at a config.json; returns why it cannot be computed, or None."""


def key_rule(name: str, implemented: Callable[[Any], bool], reason: str) -> Rule:
    """A rule about one key of config.json.

    Args:
        name: The key. Where it is missing the family's default holds, which must be implemented.
        implemented: Condition of the values that are computed.
        reason: Message for any other value, which replaces `{value}`.
    """

    def rule(config: Config) -> str | None:
        if name not in config or implemented(config[name]):
            return None
        return reason.format(value=config[name])

    return rule


def one_of(*values: object) -> Callable[[Any], bool]:
    return lambda value: value in values


def unset(value: object) -> bool:
    """Condition for `key_rule`: the value is null, false, zero or empty."""
    return not value


def rope_type_rule(*implemented: str) -> Rule:
    """All rope types of a config, which may have one for each kind of layer, must be `implemented`."""

    def rule(config: Config) -> str | None:
        kinds = {str(kind.get("rope_type", kind.get("type", "default"))) for kind in _ropes(config)}
        for rope_type in sorted(kinds - set(implemented)):
            return f"rope type '{rope_type}' is none of {', '.join(implemented)}"
        return None

    return rule


def whole_heads_rotated(config: Config) -> str | None:
    """A rule: rotary embeddings turn all dimensions of a head."""
    parts = {kind.get("partial_rotary_factor") for kind in (config, *_ropes(config))} - {None, 1}
    return f"partial_rotary_factor is {parts.pop()}: it rotates a part of each head" if parts else None


def one_rope(config: Config) -> str | None:
    """A rule: all layers have the same rotary embeddings."""
    several = any(isinstance(value, dict) for value in (config.get("rope_parameters") or {}).values())
    return "its kinds of layers have different rope_parameters" if several else None


def _ropes(config: Config) -> Iterator[Config]:
    """Rope parameters under the new name and the old; transformers takes either, or both joined."""
    for rope in (config.get("rope_parameters") or {}, config.get("rope_scaling") or {}):
        kinds = [value for value in rope.values() if isinstance(value, dict)]
        yield from kinds or [rope]


CAUSAL_RULE = key_rule("is_causal", bool, "is_causal is {value}: it attends in both directions")
UNIDIRECTIONAL_RULE = key_rule(
    # Of Gemma 4's "vision", tokens of texts attend to earlier ones.
    "use_bidirectional_attention",
    lambda value: not value or value == "vision",
    "it attends in both directions",
)
UNIFORM_RULE = key_rule("per_layer_config", unset, "its layers differ in size (per_layer_config)")
POOLING_RULE = key_rule(
    "pooling", one_of(None, "last"), "pooling is '{value}', and its class reads the last token"
)
COMMON_RULES: tuple[Rule, ...] = (
    key_rule("transformers_weights", unset, "it names a file of weights of its own ('{value}')"),
    key_rule("text_config", lambda value: value is None or isinstance(value, dict), "text_config is {value}"),
)
