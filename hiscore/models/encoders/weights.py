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
    by_root_mean_square: bool = False

    def __call__(self, x: Tensor) -> Tensor:
        if self.by_root_mean_square:
            return torch.nn.functional.rms_norm(x, self.weight.shape, self.weight, self.eps)
        return torch.nn.functional.layer_norm(x, self.weight.shape, self.weight, self.bias, self.eps)


@dataclass(frozen=True)
class Embeddings:
    words: Tensor  # [vocabulary, embedding]
    positions: Tensor | None = None  # [positions, embedding]
    types: Tensor | None = None  # [types, embedding]
    projection: Projection | None = None
    """Projection from the embedding's size to the hidden one, where they differ."""
    norm: LayerNorm | None = None
    behind_norm: Projection | None = None
    """`projection`, where it is behind the norm."""


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


@dataclass(frozen=True)
class LayerNames:
    """Names of a layer's modules; the defaults are BERT's, of which its successors kept most."""

    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: str = "intermediate.dense"
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"


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
        size, rms = width or self._a.hidden_size, self._a.rms_norms
        return LayerNorm(
            self.read.tensor(f"{name}.{weight}", size, dtype=torch.float32),
            self.read.tensor(f"{name}.{shift}", size, dtype=torch.float32) if bias and not rms else None,
            self._a.norm_eps,
            rms,
        )

    def embeddings(self, at: str, positions: int, width: int | None = None) -> Embeddings:
        """Tables under BERT's names; `width` is the hidden size unless given, and 0 positions have none."""
        size = width or self._a.hidden_size

        def table(name: str, rows: int) -> Tensor:
            return self.read.tensor(f"{at}.{name}_embeddings.weight", rows, size)

        return Embeddings(
            words=table("word", self._a.vocab_size),
            positions=table("position", positions) if positions else None,
            types=table("token_type", self._a.token_types) if self._a.token_types else None,
            norm=self.norm(f"{at}.LayerNorm", width=size),
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
        self, prefix: str, names: LayerNames, relative: RelativeProjections | None = None
    ) -> EncoderLayer:
        """A layer as BERT has it."""
        hidden, inner = self._a.hidden_size, self._a.intermediate_size
        return EncoderLayer(
            attention_norm=self.norm(f"{prefix}.{names.attention_norm}"),
            qkv=self.projection(*[f"{prefix}.{part}" for part in names.qkv], out=hidden),
            relative=relative,
            output=self.projection(f"{prefix}.{names.output}", out=hidden),
            mlp_norm=self.norm(f"{prefix}.{names.mlp_norm}"),
            up=self.projection(f"{prefix}.{names.up}", out=inner),
            down=self.projection(f"{prefix}.{names.down}", out=hidden, inner=inner),
        )
