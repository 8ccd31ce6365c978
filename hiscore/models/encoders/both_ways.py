"""Decoders of which nothing is shared between items: a decoder's layers, run as an encoder's.

They attend in both directions, as some rerankers do, or their head reads more than the last token.
"""

from pathlib import Path

import torch
from torch import Tensor

from hiscore.attention.bidirectional import BidirectionalAttention, BidirectionalShape
from hiscore.device.numerics import widen
from hiscore.layers.lm_head import LMHead
from hiscore.layers.ops import Ops
from hiscore.models.config import Architecture, read_architecture
from hiscore.models.decoder import Decoder, ModelInputs
from hiscore.models.encoders.architecture import EncoderArchitecture
from hiscore.models.encoders.encoder import Encoder, EncoderInputs
from hiscore.server.progress import Advance


class BothWays:
    def __init__(
        self, checkpoint: Path, device: torch.device, dtype: torch.dtype, max_context: int | None = None
    ) -> None:
        self._decoder = Decoder(checkpoint, device, dtype, max_context=max_context)
        a = self._decoder.architecture
        self.architecture, self.device, self.dtype = _as_encoder(a), device, dtype
        self.weights = self._decoder.weights
        sizes = (a.heads, a.kv_heads, a.head_dim, a.norm_eps, a.activation, a.family.layer_norms)
        self._ops: Ops = Ops(*sizes)
        if device.type == "cuda":
            from hiscore.layers.triton_ops import TritonOps

            self._ops = TritonOps(*sizes)
        # Nothing is kept: every row's slot is -1.
        self._pool = [self._decoder.new_pool(1, 1)[0]] * a.layers

    @property
    def after_layer(self) -> Advance:
        return self._decoder.after_layer

    @after_layer.setter
    def after_layer(self, advance: Advance) -> None:
        self._decoder.after_layer = advance

    @property
    def attention_shape(self) -> BidirectionalShape:
        a = self._decoder.architecture
        reaches = tuple(None if window is None else window - 1 for window in a.windows)
        return BidirectionalShape(a.heads, a.head_dim, a.attention_scale, reaches, causal=a.causal)

    def body(self, inputs: EncoderInputs, attention: BidirectionalAttention) -> tuple[Tensor, Tensor]:
        a = self._decoder.architecture
        no_slots = torch.full_like(inputs.positions, -1)
        rows = ModelInputs(inputs.input_ids, inputs.positions, [no_slots] * a.layers)
        return self._decoder.body(rows, self._ops, _Repeated(attention, a, self.device), self._pool)

    def tail(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the rest of the last layer and the final norm, only for rows that are read: [R, hidden]."""
        return self._decoder.tail(x, attended, self._ops)

    def head(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """Pool rows, [R, hidden], as `Encoder.head` does."""
        if self._decoder.modular is not None:
            return self._decoder.modular(rows, lengths if self.architecture.pooling == "mean" else None)
        if self.architecture.pooling == "mean":
            return torch.segment_reduce(widen(rows), "mean", lengths=lengths, unsafe=True)
        return rows

    def classifier(self) -> LMHead:
        return self._decoder.head()


class _Repeated:
    """`Attention` by an encoder's, with a head of keys and values for each head of queries."""

    def __init__(self, attention: BidirectionalAttention, a: Architecture, device: torch.device) -> None:
        self._attention, self._head_dim = attention, a.head_dim
        each = torch.arange(a.kv_heads, device=device).repeat_interleave(a.heads // a.kv_heads)
        of_q = torch.arange(a.heads, device=device)
        self._heads = torch.cat((of_q, a.heads + each, a.heads + a.kv_heads + each))

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        wide = qkv.unflatten(1, (-1, self._head_dim)).index_select(1, self._heads)
        return self._attention.attend(layer, wide.flatten(1), None)


AnyEncoder = Encoder | BothWays


def read_both_ways(checkpoint: Path, max_context: int | None = None) -> EncoderArchitecture:
    return _as_encoder(read_architecture(checkpoint, max_context)[0])


def _as_encoder(a: Architecture) -> EncoderArchitecture:
    assert a.pooling is not None
    same = (
        *("vocab_size", "context_length", "layers", "hidden_size", "heads", "labels", "norm_eps"),
        *("activation", "intermediate_size"),
    )
    sizes = {name: getattr(a, name) for name in same}
    if a.experts is not None:
        # Each row once for each of its experts.
        of_experts = a.experts.routing.per_token * (a.experts.width + a.hidden_size)
        sizes["intermediate_size"] = max(a.intermediate_size, of_experts)
    return EncoderArchitecture(
        **sizes,
        family=a.family.name,
        head_activation="none",
        gated=True,
        pooling="none" if a.scores_tokens else a.pooling,
        modular=a.modular,
        rope_kinds=(None,) * a.layers,
        size_of_head=a.head_dim,
    )
