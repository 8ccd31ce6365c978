"""An encoder's weights on the device, and their reader."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.attention.bidirectional import RelativeProjections
from hiscore.layers.weights import Projection
from hiscore.models.encoders.architecture import EncoderArchitecture
from hiscore.models.reader import CheckpointReader


@dataclass(frozen=True)
class LayerNorm:
    weight: Tensor  # float32 [hidden]
    bias: Tensor | None  # float32 [hidden]
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class Embeddings:
    words: Tensor  # [vocabulary, embedding]
    positions: Tensor | None  # [positions, embedding]
    types: Tensor | None  # [types, embedding]
    projection: Projection | None
    """Projection from the embedding's size to the hidden one, where they differ."""
    norm: LayerNorm


@dataclass(frozen=True)
class EncoderLayer:
    attention_norm: LayerNorm | None
    """Behind attention; before it with `pre_norm`, where the first layer may have none."""
    qkv: Projection  # [3 hidden, hidden]
    relative: RelativeProjections | None
    output: Projection
    mlp_norm: LayerNorm
    """Behind the MLP; before it with `pre_norm`."""
    up: Projection
    down: Projection


@dataclass(frozen=True)
class Head:
    dense: Projection
    norm: LayerNorm | None
    weight: Tensor  # [labels, hidden]
    bias: Tensor  # [labels]


@dataclass(frozen=True)
class EncoderWeights:
    embeddings: Embeddings
    layers: tuple[EncoderLayer, ...]
    final_norm: LayerNorm | None
    head: Head


class EncoderReader:
    """Reads what all families have, in the shapes that the config announces; the names are theirs."""

    def __init__(self, read: CheckpointReader, architecture: EncoderArchitecture) -> None:
        self.read, self._a = read, architecture

    def projection(self, *names: str, out: int, inner: int | None = None, bias: bool = True) -> Projection:
        """Layers of the same input, each of width `out`; `inner` is the hidden size unless given."""
        return self.read.projection(dict.fromkeys(names, out), inner or self._a.hidden_size, bias)

    def norm(self, name: str, bias: bool = True, width: int | None = None) -> LayerNorm:
        """A norm; old checkpoints call its parameters gamma and beta."""
        legacy = f"{name}.weight" not in self.read and f"{name}.gamma" in self.read
        weight, shift = ("gamma", "beta") if legacy else ("weight", "bias")
        size = width or self._a.hidden_size
        return LayerNorm(
            self.read.tensor(f"{name}.{weight}", size, dtype=torch.float32),
            self.read.tensor(f"{name}.{shift}", size, dtype=torch.float32) if bias else None,
            self._a.norm_eps,
        )

    def head(
        self, dense: str, classifier: str, norm: LayerNorm | None = None, dense_bias: bool = True
    ) -> Head:
        a = self._a
        return Head(
            self.projection(dense, out=a.hidden_size, bias=dense_bias),
            norm,
            self.read.tensor(f"{classifier}.weight", a.labels, a.hidden_size),
            self.read.tensor(f"{classifier}.bias", a.labels, dtype=torch.float32),
        )

    def post_norm_layer(
        self, prefix: str, qkv: tuple[str, str, str], relative: RelativeProjections | None = None
    ) -> EncoderLayer:
        """A layer as BERT has it, from whose modules its successors kept the names."""
        hidden, inner = self._a.hidden_size, self._a.intermediate_size
        return EncoderLayer(
            attention_norm=self.norm(f"{prefix}.attention.output.LayerNorm"),
            qkv=self.projection(*[f"{prefix}.attention.self.{part}" for part in qkv], out=hidden),
            relative=relative,
            output=self.projection(f"{prefix}.attention.output.dense", out=hidden),
            mlp_norm=self.norm(f"{prefix}.output.LayerNorm"),
            up=self.projection(f"{prefix}.intermediate.dense", out=inner),
            down=self.projection(f"{prefix}.output.dense", out=hidden, inner=inner),
        )
