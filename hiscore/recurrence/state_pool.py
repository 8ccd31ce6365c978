"""Memory for the states of recurrent layers between forwards."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.device.numerics import at_least_float32
from hiscore.recurrence.gated_delta_net import RecurrentShape


@dataclass(frozen=True)
class StatePool:
    """States of all recurrent layers; slot `ZERO_SLOT` is before any token, and stays zero."""

    states: Tensor  # float32 [layers, slots, value_heads, key_dim, value_dim]
    tails: Tensor  # [layers, slots, taps - 1, channels]

    @classmethod
    def empty(
        cls, shape: RecurrentShape, layers: int, slots: int, dtype: torch.dtype, device: torch.device
    ) -> "StatePool":
        sizes = layers, slots, shape.value_heads, shape.key_dim, shape.value_dim
        return cls(
            torch.zeros(sizes, dtype=at_least_float32(dtype), device=device),
            torch.zeros((layers, slots, shape.taps - 1, shape.channels), dtype=dtype, device=device),
        )
