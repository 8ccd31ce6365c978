"""Sizes and switches of an encoder; each family's file fills them in from its config."""

from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from hiscore.models.encoder_families import ENCODER_FAMILIES


@dataclass(frozen=True)
class Disentangled:
    """Attention to relative positions; `BidirectionalShape` has `relative_rows`."""

    terms: int
    """Kinds of products that a logit may add up: the scale counts them even where there are no positions."""
    relative_rows: Tensor | None


@dataclass(frozen=True)
class EncoderArchitecture:
    family: str
    vocab_size: int
    context_length: int
    layers: int
    hidden_size: int
    intermediate_size: int
    heads: int
    labels: int
    norm_eps: float
    activation: str
    head_activation: str
    first_position: int = 0
    uncounted_id: int | None = None
    """A token that is not counted in positions: its own is the one before `first_position`."""
    token_types: int = 0
    """Size of the table of token types; 0: there is none."""
    rms_norms: bool = False
    """Its norms divide by the root mean square, and have no bias."""
    pre_norm: bool = False
    """Blocks normalise their inputs instead of the sums behind them."""
    gated: bool = False
    """The MLP's first projection gives what is activated, then what that is multiplied with."""
    kv_heads: int | None = None
    """Heads of keys and values in the file, of which each serves several heads of queries; None: `heads`."""
    position_rows: int = 0
    """Size of the table of positions; 0: there is none."""
    attention_bias: bool = True
    up_bias: bool = True
    down_bias: bool = True
    norm_bias: bool = True
    dense_bias: bool = True
    """True if the head's first layer has a bias."""
    pooling: Literal["first", "last", "mean", "mean of the head", "none"] = "first"
    """Rows of a pair that the head reads; "none": tokens are classified, each by its own row."""
    modular: bool = False
    """Its head is one of sentence-transformers' modules, which read the first row of a pair or all of them."""
    reaches: tuple[int | None, ...] = ()
    """Tokens that each layer sees to either side; None: all of them. Empty: all layers see everything."""
    rope_kinds: tuple[str | None, ...] = ()
    """Key of each layer in rope_parameters. Empty: no rotary embedding."""
    disentangled: Disentangled | None = None
    size_of_head: int | None = None
    """None: the hidden size, divided by the heads."""

    @property
    def relative_positions(self) -> int:
        """Rows of a layer's keys and queries of relative positions; 0: it has none."""
        if self.disentangled is None or self.disentangled.relative_rows is None:
            return 0
        return int(self.disentangled.relative_rows.max()) + 1

    @property
    def head_dim(self) -> int:
        return self.size_of_head or self.hidden_size // self.heads

    @property
    def attended(self) -> int:
        return self.heads * self.head_dim

    @property
    def reads(self) -> Literal["first", "last", "all"]:
        if self.pooling == "none":
            return "first"
        return self.pooling if self.pooling in ("first", "last") else "all"

    @property
    def head_width(self) -> int:
        return self.labels if self.modular else self.hidden_size

    @property
    def bare_head(self) -> bool:
        return self.pooling == "none" and self.family != "modernbert"


KEYS = {
    "vocab_size": "vocab_size",
    "layers": "num_hidden_layers",
    "hidden_size": "hidden_size",
    "intermediate_size": "intermediate_size",
    "heads": "num_attention_heads",
    "labels": "num_labels",
    "norm_eps": "layer_norm_eps",
    "activation": "hidden_act",
}
"""Keys of most families' configs."""


def architecture_of(config: Any, **own: Any) -> EncoderArchitecture:
    """Read what most families have under the same keys, but for the fields that are given."""
    family = ENCODER_FAMILIES[config.model_type]
    own |= {field: getattr(config, key) for field, key in KEYS.items() if field not in own}
    return EncoderArchitecture(family=family.name, context_length=family.context_length(config), **own)
