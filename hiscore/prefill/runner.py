"""Runs packed prefills: the interface, and its implementation in PyTorch."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.metadata import Forward
from hiscore.attention.packed_torch import TorchAttention
from hiscore.device import Uploads
from hiscore.layers.torch_ops import TorchOps
from hiscore.models.decoder import Decoder, ModelInputs
from hiscore.prefill.pools import Pools

if TYPE_CHECKING:
    from hiscore.attention.flashinfer_prefill import FlashInferAttention


class ForwardRunner(Protocol):
    """Computes packed forwards on one device."""

    def forward(self, forwards: Sequence[Forward], uploads: Uploads | None = None) -> Tensor:
        """Compute the forwards of a batch, in order. On CUDA this only launches the work.

        Args:
            forwards: The batch.
            uploads: What else it needs on the device, which goes there along with the forwards' inputs.

        Returns:
            [R, hidden]: final hidden states of all scored rows, forward after forward.
        """
        ...


class Runner(ForwardRunner, Protocol):
    """A `ForwardRunner` of a decoder, with its own KV pool."""

    pool: Tensor
    """[layers, slots, 2, kv_heads, head_dim]"""


class TorchRunner:
    """`Runner` on the CPU, at once."""

    def __init__(self, decoder: Decoder, slots: int, pools: Pools | None = None) -> None:
        """Allocate a KV pool of `slots` tokens, or use these pools."""
        a = decoder.architecture
        self._decoder = decoder
        self._ops = decoder.over_ranks(
            TorchOps(a.heads, a.kv_heads, a.head_dim, a.norm_eps, a.activation, a.family.layer_norms)
        )
        self._pools = Pools(decoder.new_pool(slots)) if pools is None else pools
        self.pool = self._pools.shared
        self._attention = TorchAttention(decoder.attention_shape, self._pools.windows)

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward], uploads: Uploads | None = None) -> Tensor:
        width = self._decoder.architecture.hidden_size
        nothing = torch.empty((0, width), dtype=self._decoder.dtype)
        return torch.cat([nothing, *(self._forward(forward) for forward in forwards)])

    def _forward(self, forward: Forward) -> Tensor:
        self._attention.plan(forward)
        layers, windows = self._decoder.architecture.layers, self._pools.windows
        slots = torch.from_numpy(forward.slot_mapping.astype(np.int32))
        rows = self._pools.first_row + torch.arange(len(slots), dtype=torch.int32)
        inputs = ModelInputs(
            torch.from_numpy(forward.input_ids),
            torch.from_numpy(forward.positions),
            [rows if layer in windows else slots for layer in range(layers)],
            None if forward.angles is None else torch.from_numpy(forward.angles),
        )
        x, attended = self._decoder.body(inputs, self._ops, self._attention, self._pools.by_layer(layers))
        scored = torch.from_numpy(forward.scored_rows)
        return self._decoder.tail(x[scored], attended[scored], self._ops)


def make_runner(
    decoder: Decoder,
    slots: int,
    max_rows: int,
    pools: Pools | None = None,
    paged_attention: "FlashInferAttention | None" = None,
) -> Runner:
    """The runner for a decoder's device.

    Args:
        decoder: What it runs.
        slots: Tokens that its KV pool holds.
        max_rows: Tokens of one forward at most.
        pools: Memory to use instead.
        paged_attention: Attention to use instead, on a GPU, if all keys and values are in pages of that pool.
    """
    if decoder.device.type == "cuda":
        from hiscore.prefill.cuda_runner import CudaRunner

        return CudaRunner(decoder, slots, max_rows, pools, paged_attention)
    return TorchRunner(decoder, slots, pools)
