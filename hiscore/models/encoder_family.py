"""The kind of family that encoders are, and the rules that their configs must satisfy.

Nothing here imports torch: the launcher reads the table before anything heavy is loaded.
"""

from dataclasses import dataclass
from typing import Any

from hiscore.models.rules import Config, Rule, key_rule, one_of, rope_type_rule, unset, whole_heads_rotated
from hiscore.settings import Selector

ENCODER_ACTIVATIONS = ("gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "silu", "tanh")


def activation_rule(key: str) -> Rule:
    """An activation must be one of `ENCODER_ACTIVATIONS`."""
    return key_rule(
        key,
        one_of(*ENCODER_ACTIVATIONS),
        f"{key} '{{value}}' is none of {', '.join(ENCODER_ACTIVATIONS)}",
    )


def whole_heads(size_key: str = "hidden_size", heads_key: str = "num_attention_heads") -> Rule:
    """Heads must divide the hidden size."""

    def rule(config: Config) -> str | None:
        size, heads, head_dim = config.get(size_key, 0), config.get(heads_key, 1), config.get("head_dim")
        if size % heads:
            return f"{size_key} {size} is not a multiple of {heads_key} {heads}"
        if head_dim is not None and size and head_dim * heads != size:
            return f"head_dim {head_dim} of {heads} heads is not {size_key} {size}"
        return None

    return rule


@dataclass(frozen=True, kw_only=True)
class EncoderFamily:
    """Attention in both directions over a pair of query and item (`models/encoders/`): for scoring alone."""

    name: str
    known_as: str
    """Checkpoints that people know, for docs/models.md."""
    positions_follow_pad: bool = False
    """Positions are counted from pad_token_id + 1, and tokens that are the pad are not counted."""
    positions: tuple[str | None, ...] = (None, "absolute")
    """Values of position_embedding_type that are computed."""
    rope_types: tuple[str, ...] = ("default", "linear", "llama3", "yarn")
    own_rules: tuple[Rule, ...] = ()

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """None: encoders are not decoded."""
        return ()

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            key_rule(
                "quantization_config",
                unset,
                "its weights are quantised; encoders are served in float32, float16 and bfloat16",
            ),
            activation_rule("hidden_act"),
            key_rule("is_decoder", unset, "is_decoder is set: it attends to earlier tokens alone"),
            key_rule("add_cross_attention", unset, "it attends to the output of another encoder"),
            key_rule(
                "position_embedding_type",
                one_of(*self.positions),
                f"position_embedding_type '{{value}}' is not {self.positions[-1]}",
            ),
            whole_heads(),
            *self.own_rules,
            rope_type_rule(*self.rope_types),
            whole_heads_rotated,
        )

    def context_length(self, config: Any) -> int:
        """Tokens of the longest pair, by transformers' config."""
        positions: int = config.max_position_embeddings
        return positions - config.pad_token_id - 1 if self.positions_follow_pad else positions
