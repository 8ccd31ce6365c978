"""The encoder over packed rows: one loop over layers for every family and device."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from hiscore.attention.bidirectional import BidirectionalAttention, BidirectionalShape
from hiscore.device.numerics import widen
from hiscore.layers.lm_head import LMHead
from hiscore.layers.rope import Rope
from hiscore.models.config_file import check_sizes, translated
from hiscore.models.cross_encoder import read_cross_encoder
from hiscore.models.encoders import bert, deberta_v2, gated
from hiscore.models.encoders.architecture import EncoderArchitecture
from hiscore.models.encoders.weights import EncoderLayer, EncoderReader, EncoderWeights, Names
from hiscore.models.families import MODULAR_POOLINGS
from hiscore.models.family import scores_tokens
from hiscore.models.modular_head import ModularHead
from hiscore.models.reader import CheckpointReader
from hiscore.models.rotary import make_rope
from hiscore.models.support import context_limit, unscorable
from hiscore.server.progress import Advance, no_progress


class Family(NamedTuple):
    names: Names
    architecture: Callable[[Any], EncoderArchitecture]
    load: Callable[[EncoderReader, Any], EncoderWeights] = lambda read, config: read.weights()


FAMILIES = {
    "bert": Family(bert.BERT, bert.architecture),
    **dict.fromkeys(("roberta", "xlm-roberta", "camembert"), Family(bert.ROBERTA, bert.architecture)),
    "electra": Family(bert.ELECTRA, bert.electra_architecture),
    "distilbert": Family(bert.DISTILBERT, bert.distilbert_architecture),
    "albert": Family(bert.ALBERT, bert.albert_architecture, bert.load_albert),
    "mpnet": Family(bert.MPNET, bert.mpnet_architecture, bert.load_mpnet),
    "eurobert": Family(gated.EUROBERT, gated.eurobert_architecture),
    "new": Family(gated.NEW, gated.new_architecture),
    "modernbert": Family(gated.MODERNBERT, gated.modernbert_architecture),
    "deberta-v2": Family(deberta_v2.NAMES, deberta_v2.architecture, deberta_v2.load),
}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}
NOT_READ = (
    "lm_head.", "cls.", "lm_predictions.", "mask_predictions.", "decoder.", "discriminator_predictions.",
    "predictions.", "sop_classifier.", "vocab_",
)  # fmt: skip
"""Heads for pretraining that some classifiers still hold; transformers leaves them unread too."""
SIZES = ("vocab_size", "context_length", "layers", "hidden_size", "intermediate_size", "heads", "labels")
BUFFERS = ("position_ids", "token_type_ids")
"""Stored by old checkpoints; they follow from the config."""


@dataclass(frozen=True)
class EncoderInputs:
    """A forward's rows, on the device; int32 [T]."""

    input_ids: Tensor
    positions: Tensor
    token_types: Tensor


def read_encoder_architecture(
    checkpoint: Path, max_context: int | None = None
) -> tuple[EncoderArchitecture, Any]:
    """Read an encoder's config; returns transformers' config, too."""
    architecture, config = translated(
        checkpoint, unscorable, lambda config: FAMILIES[config.model_type].architecture(config)
    )
    if scores_tokens(config.architectures):
        architecture = replace(architecture, pooling="none")
    if modular := getattr(config, "modular", None):
        architecture = replace(architecture, pooling=MODULAR_POOLINGS[modular], modular=True)
    check_sizes({name: getattr(architecture, name) for name in SIZES})
    context = context_limit(architecture.context_length, max_context)
    return replace(architecture, context_length=context), config


class Encoder:
    """Weights, rotary tables and the loop over layers. Attention is passed in."""

    def __init__(
        self, checkpoint: Path, device: torch.device, dtype: torch.dtype, max_context: int | None = None
    ) -> None:
        """Load a checkpoint in a dtype; norms and the residual stream are float32.

        `max_context` limits a pair's tokens; None: see `context_limit`.
        """
        self.architecture, config = read_encoder_architecture(checkpoint, max_context)
        a = self.architecture
        self.device, self.dtype = device, dtype
        self.after_layer: Advance = no_progress
        family, modular = FAMILIES[a.family], None
        if a.modular:
            modular = ModularHead(checkpoint, read_cross_encoder(checkpoint), device, dtype)
        read = CheckpointReader(
            checkpoint, device, dtype, within=f"{family.names.model}." if a.modular else ""
        )
        self.weights = family.load(EncoderReader(read, family.names, a, modular), config)
        self._refuse_unread(read)
        self._ropes = {
            kind: make_rope(config, kind, a.head_dim, device, a.context_length) for kind in set(a.rope_kinds)
        }
        self._activation, self._head_activation = ACTIVATIONS[a.activation], ACTIVATIONS[a.head_activation]

    def _refuse_unread(self, read: CheckpointReader) -> None:
        """Refuse tensors that nothing reads: they may change the scores, unless they belong to another head."""
        a = self.architecture
        left_over = [
            name
            for name in read.unread()
            if not name.startswith(NOT_READ)
            and not name.endswith(BUFFERS)
            and not (".pooler." in name and (a.family != "bert" or a.bare_head or a.modular))
            and not (".position_embeddings." in name and self.weights.embeddings.positions is None)
        ]
        read.refuse(left_over, self.architecture.family)

    @property
    def attention_shape(self) -> BidirectionalShape:
        a = self.architecture
        terms = a.disentangled.terms if a.disentangled else 1
        rows = a.disentangled.relative_rows if a.disentangled else None
        return BidirectionalShape(
            heads=a.heads,
            head_dim=a.head_dim,
            scale=(a.head_dim * terms) ** -0.5,
            reaches=a.reaches or (None,) * a.layers,
            relative_rows=None if rows is None else rows.to(self.device),
        )

    def body(self, inputs: EncoderInputs, attention: BidirectionalAttention) -> tuple[Tensor, Tensor]:
        """Compute all layers up to and including the last one's attention, which is prepared for these rows.

        The results are the residual stream, in float32 at least, and attention's output; [T, hidden] both.
        """
        x = self._embed(inputs)
        for index, layer in enumerate(self.weights.layers):
            qkv = layer.qkv(self._input(layer, x))
            if self.architecture.rope_kinds:
                self._rotate(self._ropes[self.architecture.rope_kinds[index]], qkv, inputs.positions)
            attended = attention.attend(index, qkv, layer.relative)
            self.after_layer()
            if index < self.architecture.layers - 1:
                x = self._after_attention(layer, x, attended)
        return x, attended

    def tail(self, x: Tensor, attended: Tensor) -> Tensor:
        """Compute the rest of the last layer and the final norm, only for rows that are read: [R, hidden]."""
        x = self._after_attention(self.weights.layers[-1], x, attended)
        return x if self.weights.final_norm is None else self.weights.final_norm(x)

    def head(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """Compute the head up to its last product: [pairs, hidden], float32 at least.

        `rows`, [R, hidden], are the first of each pair, or all of them (`lengths` of each pair) for their mean; if
        tokens are classified, each row is a result of its own.
        """
        head, pooling = self.weights.head, self.architecture.pooling
        if isinstance(head, ModularHead):
            return head(rows, lengths if pooling == "mean" else None)
        if head.dense is None:
            return rows
        if pooling == "mean":
            rows = torch.segment_reduce(rows, "mean", lengths=lengths, unsafe=True)
        activated = self._head_activation(widen(head.dense(rows.to(self.dtype))))
        if pooling == "mean of the head":
            # The mean of all rows' logits: the classifier behind it is linear.
            activated = torch.segment_reduce(activated, "mean", lengths=lengths, unsafe=True)
        return activated if head.norm is None else head.norm(activated)

    def classifier(self) -> LMHead:
        return LMHead(self.weights.head.weight, None, self.weights.head.bias)

    def _embed(self, inputs: EncoderInputs) -> Tensor:
        tables = self.weights.embeddings
        x = widen(tables.words[inputs.input_ids])
        if tables.types is not None:
            x = x + tables.types[inputs.token_types]
        if tables.positions is not None:
            x = x + tables.positions[inputs.positions]
        if tables.projection is not None:
            x = widen(tables.projection(x.to(self.dtype)))
        if tables.norm is not None:
            x = tables.norm(x)
        return x if tables.behind_norm is None else widen(tables.behind_norm(x.to(self.dtype)))

    def _input(self, layer: EncoderLayer, x: Tensor) -> Tensor:
        if self.architecture.pre_norm and layer.attention_norm is not None:
            x = layer.attention_norm(x)
        return x.to(self.dtype)

    def _after_attention(self, layer: EncoderLayer, x: Tensor, attended: Tensor) -> Tensor:
        x = x + layer.output(attended)
        if self.architecture.pre_norm:
            return x + self._mlp(layer, layer.mlp_norm(x))
        assert layer.attention_norm is not None
        x = layer.attention_norm(x)
        return layer.mlp_norm(x + self._mlp(layer, x))

    def _mlp(self, layer: EncoderLayer, x: Tensor) -> Tensor:
        inner = layer.up(x.to(self.dtype))
        if self.architecture.gated:
            activated, factor = inner.chunk(2, dim=-1)
            return layer.down(self._activation(activated) * factor)
        return layer.down(self._activation(inner))

    def _rotate(self, rope: Rope, qkv: Tensor, positions: Tensor) -> None:
        a = self.architecture
        rotated = qkv.unflatten(1, (-1, a.head_dim))[:, : 2 * a.heads]
        first, second = widen(rotated).chunk(2, dim=-1)
        cos, sin = rope.cos[positions][:, None], rope.sin[positions][:, None]
        rotated.copy_(torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1))
