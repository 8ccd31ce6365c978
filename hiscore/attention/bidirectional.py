"""The interface between an encoder and its attention: rows of a segment see each other, and nothing else."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class BidirectionalShape:
    heads: int
    head_dim: int
    scale: float
    reaches: tuple[int | None, ...]
    """Distance that a token of each layer sees to either side; None: everything."""
    relative_rows: Tensor | None = None
    """int32 [2 context - 1]: the row of `RelativeProjections` for every distance from query to key, from
    1 - context on; None: content alone attends."""
    causal: bool = False
    """True if a row sees no later ones."""

    @property
    def farthest(self) -> int:
        return 0 if self.relative_rows is None else len(self.relative_rows) // 2


@dataclass(frozen=True)
class RelativeProjections:
    """A layer's keys and queries of relative positions, as in DeBERTa, and its biases of them, as in MPNet.

    With r the row for the distance from query i to key j, a logit is
    (q_i k_j + q_i keys_r + k_j queries_r) scale + biases_r. Biases are for a layer without keys.
    """

    keys: Tensor | None  # [heads, P, head_dim]: what content attends to; None: it does not
    queries: Tensor | None  # [heads, P, head_dim]: what attends to content; None: it does not
    biases: Tensor | None = None  # [heads, P]; None: 0


class BidirectionalAttention(Protocol):
    """Computes softmax(logits) v for the rows of one forward, whose segments it was given before."""

    def attend(self, layer: int, qkv: Tensor, relative: RelativeProjections | None) -> Tensor:
        """Attend in one layer: qkv, [T, 3 heads head_dim], rotated where the family rotates.

        The result is [T, heads head_dim]; in the last layer only rows that are read are defined.
        """
        ...
