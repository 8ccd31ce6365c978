"""A gated delta net without its projections: sizes, weights, and the interface to what computes it."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

NORM_OF_KEYS_EPS = 1e-6
"""Epsilon by which queries and keys become of unit length."""


@dataclass(frozen=True)
class RecurrentShape:
    key_heads: int
    value_heads: int
    """A multiple of `key_heads`: each key serves several values."""
    key_dim: int
    value_dim: int
    taps: int
    """Tokens that the convolution before the rule reads, the token itself included."""
    convolved: int = 0
    """Channels of a layer that is this convolution alone, between two gates; 0: it is a gated delta net."""

    @property
    def channels(self) -> int:
        """Numbers of a token that the convolution reads: queries, keys and values."""
        return self.convolved or 2 * self.key_heads * self.key_dim + self.values

    @property
    def values(self) -> int:
        return self.convolved or self.value_heads * self.value_dim

    @property
    def inputs(self) -> int:
        """Width of the joint projection: those channels, output gates, and beta and decay of each head."""
        return self.channels + self.values + (self.convolved or 2 * self.value_heads)

    def bytes_of(self, layers: int, number_bytes: int) -> int:
        """Bytes of a state in so many layers; what the convolution keeps is in the model's dtype."""
        return layers * (4 * self.values * self.key_dim + number_bytes * (self.taps - 1) * self.channels)


@dataclass(frozen=True)
class RecurrentWeights:
    convolution: Tensor  # [taps, channels], the token's own tap last
    rates: Tensor  # float32 [value_heads]: how fast a head's state decays, at most 0
    decay_bias: Tensor  # float32 [value_heads]
    norm: Tensor  # float32 [value_dim]


class Recurrence(Protocol):
    """Computes a layer's recurrence for the rows of one forward, whose spans it was given before."""

    def mix(self, layer: int, weights: RecurrentWeights, inputs: Tensor) -> Tensor:
        """Compute a layer and keep its states.

        Args:
            layer: Its number among the recurrent ones.
            inputs: [T, inputs]: the joint projection of the rows; see `RecurrentShape`.

        Returns:
            [T, values], for the output projection.
        """
        ...


class Steps(Recurrence, Protocol):
    """Computes one token of each row's sequence, and changes the states in place."""

    def plan_steps(self, slots: Tensor) -> None:
        """Prepare a step by the slots of its rows: int64 [R], all different but `PADDING_SLOT`."""
        ...
