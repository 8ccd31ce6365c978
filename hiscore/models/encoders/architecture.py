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
    pooling: Literal["first", "mean", "mean of the head"] = "first"
    reaches: tuple[int | None, ...] = ()
    """Tokens that each layer sees to either side; None: all of them. Empty: all layers see everything."""
    rope_kinds: tuple[str | None, ...] = ()
    """Key of each layer in rope_parameters. Empty: no rotary embedding."""
    disentangled: Disentangled | None = None

    @property
    def relative_positions(self) -> int:
        """Rows of a layer's keys and queries of relative positions; 0: it has none."""
        if self.disentangled is None or self.disentangled.relative_rows is None:
            return 0
        return int(self.disentangled.relative_rows.max()) + 1

    @property
    def head_dim(self) -> int:
        return self.hidden_size // self.heads

    @property
    def reads_all(self) -> bool:
        """True if the head reads all rows of a pair, not only the first."""
        return self.pooling != "first"


def common_sizes(config: Any) -> dict[str, Any]:
    """Sizes that the configs of all families have under the same names."""
    return {
        "family": config.model_type,
        "vocab_size": config.vocab_size,
        "context_length": ENCODER_FAMILIES[config.model_type].context_length(config),
        "layers": config.num_hidden_layers,
        "hidden_size": config.hidden_size,
        "heads": config.num_attention_heads,
        "labels": config.num_labels,
    }
