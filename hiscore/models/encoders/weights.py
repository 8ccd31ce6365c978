"""An encoder's weights on the device, and their reader."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.attention.bidirectional import RelativeProjections
from hiscore.layers.weights import Projection
from hiscore.models.encoders.architecture import EncoderArchitecture
from hiscore.models.modular_head import ModularHead
from hiscore.models.reader import CheckpointReader, widths_of


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
    dense: Projection | None
    norm: LayerNorm | None
    weight: Tensor  # [labels, hidden]
    bias: Tensor  # [labels]


@dataclass(frozen=True)
class EncoderWeights:
    embeddings: Embeddings
    layers: tuple[EncoderLayer, ...]
    final_norm: LayerNorm | None
    head: Head | ModularHead


@dataclass(frozen=True)
class Names:
    """Names of a family's modules; the defaults are BERT's, of which its successors kept most.

    Attributes:
        model: Beginning of all names but the head's.
        dense: First layer of the head. Where that is the head's own, a pooler in the file is not used.
        embedding_norm: None: there is none. Behind one, the first layer of a family with `pre_norm` has none.
        factors_first: A gated MLP's first projection holds the factors, then what is activated.
    """

    model: str
    dense: str
    words: str = "embeddings.word_embeddings"
    embedding_norm: str | None = "embeddings.LayerNorm"
    layers: str = "encoder.layer"
    qkv: tuple[str, ...] = ("attention.self.query", "attention.self.key", "attention.self.value")
    output: str = "attention.output.dense"
    attention_norm: str = "attention.output.LayerNorm"
    up: tuple[str, ...] = ("intermediate.dense",)
    factors_first: bool = False
    down: str = "output.dense"
    mlp_norm: str = "output.LayerNorm"
    final_norm: str | None = None
    head_norm: str | None = None
    classifier: str = "classifier"


class EncoderReader:
    """Reads what all families have, in the shapes that the config announces."""

    def __init__(
        self,
        read: CheckpointReader,
        names: Names,
        architecture: EncoderArchitecture,
        modular: ModularHead | None,
    ) -> None:
        """Read with a checkpoint's reader; a head of modules is not in its files."""
        self.read, self.names, self._a, self._modular = read, names, architecture, modular

    def weights(
        self,
        relative: Callable[[str], RelativeProjections | None] = lambda layer: None,
        embeddings: Embeddings | None = None,
        layers: Sequence[EncoderLayer] | None = None,
    ) -> EncoderWeights:
        """Read all weights, but for those that are given; `relative` makes a layer's by its name."""
        names, a = self.names, self._a
        if layers is None:
            prefixes = [f"{names.model}.{names.layers}.{index}" for index in range(a.layers)]
            layers = [self.layer(each, relative(each), not index) for index, each in enumerate(prefixes)]
        return EncoderWeights(
            embeddings=embeddings or self.embeddings(),
            layers=tuple(layers),
            final_norm=None if names.final_norm is None else self.norm(f"{names.model}.{names.final_norm}"),
            head=self._modular or self._head(),
        )

    def projection(self, *names: str, out: int, inner: int | None = None, bias: bool = True) -> Projection:
        """Layers of the same input, each of width `out`; `inner` is the hidden size unless given."""
        return self.read.projection(dict.fromkeys(names, out), inner or self._a.hidden_size, bias)

    def norm(self, name: str, width: int | None = None) -> LayerNorm:
        """A norm; old checkpoints call its parameters gamma and beta."""
        legacy = f"{name}.weight" not in self.read and f"{name}.gamma" in self.read
        weight, shift = ("gamma", "beta") if legacy else ("weight", "bias")
        size, rms = width or self._a.hidden_size, self._a.rms_norms
        has_bias = self._a.norm_bias and not rms
        return LayerNorm(
            self.read.tensor(f"{name}.{weight}", size, dtype=torch.float32),
            self.read.tensor(f"{name}.{shift}", size, dtype=torch.float32) if has_bias else None,
            self._a.norm_eps,
            rms,
        )

    def embeddings(self, width: int | None = None, normed: int | None = None) -> Embeddings:
        """Tables of `width` columns, and a norm of `normed` numbers: the hidden size unless given."""
        names, a = self.names, self._a

        def table(name: str, rows: int) -> Tensor:
            return self.read.tensor(f"{names.model}.{name}.weight", rows, width or a.hidden_size)

        return Embeddings(
            words=table(names.words, a.vocab_size),
            positions=table("embeddings.position_embeddings", a.position_rows) if a.position_rows else None,
            types=table("embeddings.token_type_embeddings", a.token_types) if a.token_types else None,
            norm=self.norm(f"{names.model}.{names.embedding_norm}", normed) if names.embedding_norm else None,
        )

    def layer(
        self, prefix: str, relative: RelativeProjections | None = None, is_first: bool = False
    ) -> EncoderLayer:
        names, a, hidden = self.names, self._a, self._a.hidden_size
        inner, kv_heads = a.intermediate_size, a.kv_heads or a.heads
        normed_already = is_first and a.pre_norm and names.embedding_norm is not None
        qkv = widths_of(prefix, names.qkv, [each * a.head_dim for each in (a.heads, kv_heads, kv_heads)])
        up = widths_of(prefix, names.up, [inner, inner] if a.gated else [inner])
        up_order = torch.arange(2 * inner).roll(inner) if names.factors_first else None
        return EncoderLayer(
            attention_norm=None if normed_already else self.norm(f"{prefix}.{names.attention_norm}"),
            qkv=self.read.projection(qkv, hidden, a.attention_bias, _repeated(a.heads, kv_heads, a.head_dim)),
            relative=relative,
            output=self.projection(f"{prefix}.{names.output}", out=hidden, bias=a.attention_bias),
            mlp_norm=self.norm(f"{prefix}.{names.mlp_norm}"),
            up=self.read.projection(up, hidden, a.up_bias, up_order),
            down=self.projection(f"{prefix}.{names.down}", out=hidden, inner=inner, bias=a.down_bias),
        )

    def _head(self) -> Head:
        names, a = self.names, self._a
        # All families call that of tokens so.
        classifier = "classifier" if a.pooling == "none" else names.classifier
        return Head(
            None if a.bare_head else self.projection(names.dense, out=a.hidden_size, bias=a.dense_bias),
            None if names.head_norm is None else self.norm(names.head_norm),
            self.read.tensor(f"{classifier}.weight", a.labels, a.hidden_size),
            self.read.tensor(f"{classifier}.bias", a.labels, dtype=torch.float32),
        )


def _repeated(heads: int, kv_heads: int, head_dim: int) -> Tensor | None:
    """Rows of q, then of k and v, where each head of those is repeated for all heads of q that it serves."""
    if heads == kv_heads:
        return None
    each = torch.arange(kv_heads).repeat_interleave(heads // kv_heads)
    firsts = torch.cat((torch.arange(heads), heads + each, heads + kv_heads + each))
    return (firsts[:, None] * head_dim + torch.arange(head_dim)).flatten()
