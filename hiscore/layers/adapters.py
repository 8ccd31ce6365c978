"""Adapters of linear layers: products of low rank, added to the rows that an adapter computes.

A forward computes rows of several adapters, and of none, at once. The checkpoint's product is made for all of
them, and each adapter's is added to its own rows. A row's adapter is told by the upper bits of its token id.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hiscore.attention.metadata import TOKEN_BITS
from hiscore.layers.ops import Ops
from hiscore.layers.products import linear
from hiscore.layers.weights import Projection


@dataclass(frozen=True)
class LowRank:
    """Products that adapters add to some columns of a projection's, tight in memory whatever their ranks are.

    Attributes:
        down: [ranks of all adapters, in], in their order.
        up: [ranks of all adapters, columns], with their factors.
        firsts: For each adapter's number the first of its ranks; the last is one past all.
    """

    columns: slice
    down: Tensor
    up: Tensor
    firsts: tuple[int, ...]
    table: Tensor  # int32 [adapters + 2]: `firsts` on the device

    @classmethod
    def empty(
        cls, columns: slice, inputs: int, ranks: Mapping[int, int], adapters: int, like: Tensor
    ) -> "LowRank":
        """Make room for some adapters, whose ranks are given by their numbers from 1 on."""
        # There is no adapter 0.
        firsts = (0, *accumulate((ranks.get(number, 0) for number in range(1, adapters + 1)), initial=0))
        table = torch.tensor(firsts, dtype=torch.int32, device=like.device)
        sizes = inputs, columns.stop - columns.start
        down, up = (like.new_empty((firsts[-1], size)) for size in sizes)
        return cls(columns, down, up, firsts, table)

    def fill(self, number: int, down: Tensor, up: Tensor) -> None:
        """Copy an adapter's [rank, in] and [rank, columns] to their place."""
        own = slice(*self.firsts[number : number + 2])
        self.down[own], self.up[own] = down, up


class Adapters(NamedTuple):
    """Weights of all adapters of a checkpoint.

    Attributes:
        products: By the id of a projection.
        head: [labels of all heads, hidden]; None: no adapter has a head of its own.
    """

    products: Mapping[int, Sequence[LowRank]]
    head: Tensor | None


class AdaptedTorchOps(Ops):
    """`Ops` under adapters."""

    def __init__(self, adapters: Adapters, *sizes: Any) -> None:
        super().__init__(*sizes)
        self._products = adapters.products
        self._rows: Sequence[tuple[int, Tensor]] = ()

    def adapt(self, ids: Tensor) -> Tensor:
        numbers = ids >> TOKEN_BITS
        self._rows = [
            (number, torch.nonzero(numbers == number)[:, 0]) for number in numbers.unique().tolist() if number
        ]
        return ids & ((1 << TOKEN_BITS) - 1)

    def project(self, projection: Projection, h: Any) -> Tensor:
        out = super().project(projection, h)
        for each in self._products.get(id(projection), ()):
            for number, rows in self._rows:
                own = slice(*each.firsts[number : number + 2])
                if own.start == own.stop:
                    continue
                added = linear(linear(h.index_select(0, rows), each.down[own]), each.up[own].T)
                out[:, each.columns].index_add_(0, rows, added)
        return out
