"""Loads weights from safetensors and fuses those that the decoder uses together.

Missing tensors and tensors that nothing reads are both errors: a bias that is silently dropped gives plausible but
wrong scores.
"""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hiscore.layers.weights import (
    FP8_ALIGNMENT,
    Fp8Linear,
    LayerWeights,
    Linear,
    Projection,
    Weights,
    quantise,
)
from hiscore.models.config import Architecture, UnsupportedCheckpoint
from hiscore.models.quantization.tensors import CheckpointTensors

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROPE_BUFFER = ".rotary_emb.inv_freq"
"""Stored by old checkpoints; it follows from the config."""


class CheckpointReader:
    """Reads tensors by name, checks their shapes, converts and moves them, and keeps track of those never read."""

    def __init__(self, checkpoint: Path, device: torch.device, dtype: torch.dtype, fp8: bool) -> None:
        self._dtype, self._fp8 = dtype, fp8
        self._tensors = CheckpointTensors(checkpoint, device)
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor.

        Args:
            name: Its name in the checkpoint.
            shape: What it must have.
            dtype: Of the result; None: the reader's.

        Raises:
            UnsupportedCheckpoint: There is no such tensor, or it has another shape.
        """
        return self._joined({name: shape}, dtype)

    def projection(self, outs: Mapping[str, int], inner: int, bias: bool) -> Projection:
        """Read layers of the same input as one projection, in fp8 if the reader is.

        Args:
            outs: Name and width of each layer, in order.
            inner: Width of the input.
            bias: Whether they have biases.
        """
        weights = {f"{name}.weight": (out, inner) for name, out in outs.items()}
        added = self._joined({f"{name}.bias": (out,) for name, out in outs.items()}) if bias else None
        if not self._fp8:
            return Linear(self._joined(weights), added)
        # Quantised from float32, so that it is rounded once.
        weight = self._joined(weights, torch.float32)
        if any(size % FP8_ALIGNMENT for size in weight.shape):
            raise UnsupportedCheckpoint(
                f"'{next(iter(weights))}' belongs to a projection of shape {list(weight.shape)}; dtype fp8 needs "
                f"multiples of {FP8_ALIGNMENT}"
            )
        return Fp8Linear(quantise(weight), added)

    def equal(self, one: str, other: str) -> bool:
        """Whether two tensors, which must be there, are stored as the same values."""
        return self._tensors.equal(one, other)

    def unread(self) -> list[str]:
        """Names of tensors that were never read and may change the result. Logs what was dequantised.

        The head of a causal LM is left over where it is tied to the embedding, and where a causal LM was made into
        a classifier.
        """
        self._tensors.report(self._dtype)
        left_over = set(self._tensors) - self._read - {HEAD}
        return sorted(name for name in left_over if not name.endswith(ROPE_BUFFER))

    def _joined(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype | None = None) -> Tensor:
        """Read tensors of known shapes, joined along their first dimension."""
        if missing := [name for name in shapes if name not in self._tensors]:
            raise UnsupportedCheckpoint(f"the checkpoint has no tensor '{missing[0]}'")
        self._read.update(shapes)
        parts = [self._tensors.read(name).to(dtype or self._dtype) for name in shapes]
        for part, (name, shape) in zip(parts, shapes.items(), strict=True):
            if part.shape != shape:
                raise UnsupportedCheckpoint(
                    f"'{name}' has shape {list(part.shape)}, the config announces {list(shape)}"
                )
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)


def load_weights(
    checkpoint: Path,
    architecture: Architecture,
    device: torch.device,
    dtype: torch.dtype,
    fp8: bool = False,
) -> Weights:
    """Load and fuse a checkpoint's weights.

    Args:
        checkpoint: Directory with safetensors.
        architecture: What the config says.
        device: Where the weights are kept.
        dtype: Of the weights; norms are float32.
        fp8: Whether the layers' projections are `Fp8Linear`.

    Raises:
        UnsupportedCheckpoint: A tensor is missing, left over, or of another shape than the config says.
    """
    read, a = CheckpointReader(checkpoint, device, dtype, fp8), architecture
    if a.labels is None:
        embedding, head = embedding_and_head(read, a.vocab_size, a.hidden_size, a.tied_head)
    else:
        embedding = read.tensor(EMBEDDING, a.vocab_size, a.hidden_size)
        head = read.tensor("score.weight", a.labels, a.hidden_size)
    layers = tuple(_load_layer(read, f"model.layers.{index}", a) for index in range(a.layers))
    final_norm = _norm(read, "model.norm", a, a.hidden_size)
    if left_over := read.unread():
        raise UnsupportedCheckpoint(
            f"the checkpoint holds {len(left_over)} tensors that a {a.family} model does not have, "
            f"'{left_over[0]}' for one"
        )
    return Weights(embedding, layers, final_norm, head)


def embedding_and_head(
    read: CheckpointReader, vocab_size: int, hidden_size: int, tied: bool
) -> tuple[Tensor, Tensor]:
    """Read the embedding and the head of a causal LM, which may be one tensor.

    As transformers ties them: the checkpoint may hold either or both, and if both are there and differ, they are
    not tied, whatever the config says. Adapters of tied models, merged, leave such checkpoints.

    Args:
        read: Reader of the checkpoint.
        vocab_size: Rows of both.
        hidden_size: Columns of both.
        tied: Whether the config ties them.

    Returns:
        Both, [vocabulary, hidden].
    """
    shape = vocab_size, hidden_size
    both = EMBEDDING in read and HEAD in read
    if not tied or (both and not read.equal(EMBEDDING, HEAD)):
        return read.tensor(EMBEDDING, *shape), read.tensor(HEAD, *shape)
    shared = read.tensor(HEAD if HEAD in read and not both else EMBEDDING, *shape)
    return shared, shared


def _load_layer(read: CheckpointReader, prefix: str, a: Architecture) -> LayerWeights:
    def norm(name: str, size: int = a.hidden_size) -> Tensor:
        return _norm(read, f"{prefix}.{name}", a, size)

    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    q, kv = a.heads * a.head_dim, a.kv_heads * a.head_dim
    qkv = {f"{attention}.q_proj": q, f"{attention}.k_proj": kv, f"{attention}.v_proj": kv}
    gate_up = {f"{mlp}.gate_proj": a.intermediate_size, f"{mlp}.up_proj": a.intermediate_size}
    return LayerWeights(
        input_norm=norm("input_layernorm"),
        qkv=read.projection(qkv, a.hidden_size, bias=a.qkv_bias),
        q_norm=norm("self_attn.q_norm", a.head_dim) if a.qk_norm else None,
        k_norm=norm("self_attn.k_norm", a.head_dim) if a.qk_norm else None,
        output=read.projection({f"{attention}.o_proj": a.hidden_size}, q, bias=a.output_bias),
        post_attention_norm=norm("post_attention_layernorm") if a.sandwich_norms else None,
        mlp_norm=norm("pre_feedforward_layernorm" if a.sandwich_norms else "post_attention_layernorm"),
        gate_up=read.projection(gate_up, a.hidden_size, bias=a.mlp_bias),
        down=read.projection({f"{mlp}.down_proj": a.hidden_size}, a.intermediate_size, bias=a.mlp_bias),
        post_mlp_norm=norm("post_feedforward_layernorm") if a.sandwich_norms else None,
    )


def _norm(read: CheckpointReader, name: str, a: Architecture, size: int) -> Tensor:
    """The weight of an RMSNorm, in float32; the one that Gemma leaves out is added."""
    weight = read.tensor(f"{name}.weight", size).float()
    return weight + 1 if a.norm_plus_one else weight
