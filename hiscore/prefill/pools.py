"""Pools in which the layers of a prefill find keys and values of earlier tokens, and put new ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hiscore.models.decoder import Decoder
from hiscore.recurrence.state_pool import StatePool


@dataclass(frozen=True)
class Pools:
    """A pool that most layers share, those of layers that keep a window only, and the states of recurrent layers.

    In the latter, what a forward computes must not overwrite what its own rows see. So row r goes to a slot of its
    own, `first_row` + r, and the owner moves it when the forward has run.

    Attributes:
        shared: [layers, slots, 2, kv_heads, head_dim], of all layers without one of their own, in order.
        windows: By layer, [slots, 2, kv_heads, head_dim]. Its context is at `SegmentGroup.window_slots`.
        states: None: no layer is recurrent.
    """

    shared: Tensor
    windows: Mapping[int, Tensor] = field(default_factory=dict)
    first_row: int = 0
    states: StatePool | None = None

    @classmethod
    def of(cls, decoder: Decoder, slots: int, states: int) -> "Pools":
        """Allocate pools of so many tokens, and of so many states if layers are recurrent."""
        return cls(decoder.new_pool(slots), states=decoder.new_states(states))

    def by_layer(self, keyless: Sequence[bool]) -> list[Tensor]:
        """The pool of each layer; empty for those that keep no keys."""
        shared, nothing = iter(self.shared), self.shared[:0]
        return [
            nothing if has_none else self.windows[layer] if layer in self.windows else next(shared)
            for layer, has_none in enumerate(keyless)
        ]
