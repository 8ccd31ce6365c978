"""`Runner` in PyTorch, and the choice of one."""

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.metadata import Forward
from hiscore.attention.packed_torch import TorchAttention
from hiscore.device.copies import PinnedArrays
from hiscore.layers.adapters import AdaptedTorchOps
from hiscore.layers.ops import Ops
from hiscore.models.decoder import Decoder, ModelInputs
from hiscore.prefill.interface import Runner, launch_all
from hiscore.prefill.pools import Pools
from hiscore.recurrence.torch_recurrence import StepRecurrence, TorchRecurrence

if TYPE_CHECKING:
    from hiscore.attention.flashinfer_prefill import FlashInferAttention


CPU = torch.device("cpu")


class TorchRunner(Runner):
    def __init__(self, decoder: Decoder, slots: int, pools: Pools | None = None, states: int = 0) -> None:
        a = decoder.architecture
        self._decoder = decoder
        sizes = (a.heads, a.kv_heads, a.head_dim, a.norm_eps, a.activation, a.family.layer_norms)
        adapters = decoder.adapters
        self._ops = decoder.over_ranks(AdaptedTorchOps(adapters, *sizes) if adapters else Ops(*sizes))
        self._pools = Pools.of(decoder, slots, states) if pools is None else pools
        self.pool = self._pools.shared
        self._attention = TorchAttention(decoder.attention_shape, self._pools.windows)
        self._recurrence: TorchRecurrence | None = None
        if a.recurrence is not None and self._pools.states is not None:
            self._recurrence = TorchRecurrence(a.recurrence, self._pools.states, a.norm_eps)
            self.steps = StepRecurrence(a.recurrence, self._pools.states, a.norm_eps)

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        width = self._decoder.architecture.hidden_size
        nothing = torch.empty((0, width), dtype=self._decoder.dtype)
        launches = [self.in_slices(forward, PinnedArrays(CPU)) for forward in forwards]
        return torch.cat([nothing, *(launch_all(slices) for slices in launches)])

    def slices(self, forward: Forward) -> int:
        return len(self._spans(forward))

    def in_slices(self, forward: Forward, arrays: PinnedArrays) -> Generator[None, None, Tensor]:
        layers, windows = self._decoder.architecture.layers, self._pools.windows
        slots = torch.from_numpy(forward.slot_mapping.astype(np.int32))
        rows = self._pools.first_row + torch.arange(len(slots), dtype=torch.int32)
        inputs = ModelInputs(
            torch.from_numpy(forward.input_ids),
            torch.from_numpy(forward.positions),
            [rows if layer in windows else slots for layer in range(layers)],
            None if forward.angles is None else torch.from_numpy(forward.angles),
        )
        pools, x = self._pools.by_layer(self._decoder.architecture.keyless), None
        pool = self._decoder.layer_pools(pools)
        for span in self._spans(forward):
            if x is not None:
                yield
            self._attention.plan(forward)
            if self._recurrence is not None and forward.states is not None:
                self._recurrence.plan(forward.states)
            x, attended = self._decoder.body(
                inputs, self._ops, self._attention, pool, span, x, self._recurrence
            )
        assert x is not None
        scored = torch.from_numpy(forward.scored_rows)
        return self._decoder.tail(x[scored], attended[scored], self._ops, inputs.input_ids[scored])

    def _spans(self, forward: Forward) -> Sequence[range]:
        """The layers of each slice: on a CPU nothing is launched ahead."""
        return [range(self._decoder.architecture.layers)]


def make_runner(
    decoder: Decoder,
    slots: int,
    max_rows: int,
    pools: Pools | None = None,
    paged_attention: "FlashInferAttention | None" = None,
    in_slices: bool = False,
    states: int = 0,
) -> Runner:
    """Make the runner for a decoder's device.

    Args:
        slots: Tokens that its KV pool holds.
        pools: Memory to use instead.
        paged_attention: Attention to use instead, on a GPU, if all keys and values are in pages of that pool.
        in_slices: Launch forwards of many rows in slices, on a GPU that has the whole decoder.
        states: Slots of the pool of states, if the decoder has recurrent layers.
    """
    if decoder.device.type == "cuda":
        from hiscore.prefill.cuda_runner import CudaRunner

        return CudaRunner(decoder, slots, max_rows, pools, paged_attention, in_slices, states)
    return TorchRunner(decoder, slots, pools, states)
