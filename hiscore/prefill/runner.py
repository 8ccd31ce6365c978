"""Runs packed forwards on a device. This one: at once, in plain torch."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.metadata import Forward
from hiscore.attention.packed_torch import TorchAttention
from hiscore.layers.torch_ops import TorchOps
from hiscore.models.decoder import Decoder, Rows


class Runner(Protocol):
    """What the scorer needs of a device."""

    pool: Tensor
    """Keys and values, [layers, slots, 2, kv_heads, head_dim]."""

    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        """Run the forwards of a batch in order.

        Returns the final hidden states of all scored rows, [R, hidden_size], forward by forward. On a device with
        a queue of its own this only launches the work.
        """
        ...


class TorchRunner:
    """`Runner` for the CPU."""

    def __init__(self, decoder: Decoder, slots: int) -> None:
        a = decoder.architecture
        self._decoder = decoder
        self._ops = TorchOps(a.heads, a.kv_heads, a.head_dim, a.norm_eps, a.activation)
        self._attention = TorchAttention(decoder.attention_shape)
        self.pool = decoder.new_pool(slots)

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        width = self._decoder.architecture.hidden_size
        nothing = torch.empty((0, width), dtype=self._decoder.dtype)
        return torch.cat([nothing, *(self._forward(forward) for forward in forwards)])

    def _forward(self, forward: Forward) -> Tensor:
        self._attention.plan(forward)
        rows = Rows(
            torch.from_numpy(forward.input_ids),
            torch.from_numpy(forward.positions),
            [torch.from_numpy(forward.slot_mapping.astype(np.int32))] * self._decoder.architecture.layers,
        )
        x, attended = self._decoder.body(rows, self._ops, self._attention, self.pool)
        scored = torch.from_numpy(forward.scored_rows)
        return self._decoder.tail(x[scored], attended[scored], self._ops)


def make_runner(decoder: Decoder, slots: int, max_rows: int) -> Runner:
    """The runner for the decoder's device, with a pool of `slots` and room for `max_rows` at once."""
    if decoder.device.type == "cuda":
        from hiscore.prefill.cuda_runner import CudaRunner

        return CudaRunner(decoder, slots, max_rows)
    return TorchRunner(decoder, slots)
