"""Pools in which the layers of a prefill find keys and values of earlier tokens, and put new ones."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor


@dataclass(frozen=True)
class Pools:
    """A pool that most layers share, and those of layers that keep a window only.

    In the latter, what a forward computes must not overwrite what its own rows see. So row r goes to a slot of its
    own, `first_row` + r, and the owner moves it when the forward has run.

    Attributes:
        shared: [layers, slots, 2, kv_heads, head_dim], of all layers without one of their own, in order.
        windows: By layer, [slots, 2, kv_heads, head_dim]. Its context is at `SegmentGroup.window_slots`.
    """

    shared: Tensor
    windows: Mapping[int, Tensor] = field(default_factory=dict)
    first_row: int = 0

    def by_layer(self, layers: int) -> list[Tensor]:
        shared = iter(self.shared)
        return [self.windows[layer] if layer in self.windows else next(shared) for layer in range(layers)]
