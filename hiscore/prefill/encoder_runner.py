"""Runs packed forwards of an encoder: the interface, and its implementation in PyTorch."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.bidirectional_torch import TorchBidirectionalAttention
from hiscore.attention.metadata import Forward
from hiscore.models.encoders.both_ways import AnyEncoder
from hiscore.models.encoders.encoder import EncoderInputs
from hiscore.prefill.interface import ForwardRunner


class TorchEncoderRunner(ForwardRunner):
    """`ForwardRunner` on the CPU, at once."""

    def __init__(self, encoder: AnyEncoder) -> None:
        self._encoder = encoder
        self._attention = TorchBidirectionalAttention(encoder.attention_shape)

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        nothing = torch.empty((0, self._encoder.architecture.head_width))
        return torch.cat([nothing, *(self._forward(forward) for forward in forwards)])

    def _forward(self, forward: Forward) -> Tensor:
        assert forward.token_types is not None
        self._attention.plan(forward)
        inputs = EncoderInputs(
            torch.from_numpy(forward.input_ids),
            torch.from_numpy(forward.positions),
            torch.from_numpy(forward.token_types),
        )
        x, attended = self._encoder.body(inputs, self._attention)
        scored = torch.from_numpy(forward.scored_rows)
        lengths = torch.from_numpy(np.diff(forward.cu_seqlens).astype(np.int64))
        return self._encoder.head(self._encoder.tail(x[scored], attended[scored]), lengths)


def make_encoder_runner(encoder: AnyEncoder, max_rows: int) -> ForwardRunner:
    """The runner for an encoder's device, for forwards of up to `max_rows` rows."""
    if encoder.device.type == "cuda":
        from hiscore.prefill.encoder_cuda_runner import CudaEncoderRunner

        return CudaEncoderRunner(encoder, max_rows)
    return TorchEncoderRunner(encoder)
