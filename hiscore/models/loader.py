"""Loads weights from safetensors and fuses those that the decoder uses together.

Missing tensors and tensors that nothing reads are both errors: a bias that is silently dropped gives plausible but
wrong scores.
"""

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

ROPE_BUFFER = ".rotary_emb.inv_freq"
"""Stored by old checkpoints; it follows from the config."""


class CheckpointReader:
    """Reads tensors by name, moves and converts them, and keeps track of those never read."""

    def __init__(self, checkpoint: Path, device: torch.device, dtype: torch.dtype, fp8: bool) -> None:
        self._dtype, self._fp8 = dtype, fp8
        self._tensors = CheckpointTensors(checkpoint, device)
        self._read: set[str] = set()

    def __call__(self, *names: str, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor, or several joined along their first dimension.

        Args:
            names: Of the tensors.
            dtype: Of the result; None: the reader's.

        Raises:
            UnsupportedCheckpoint: There is no such tensor.
        """
        for name in names:
            if name not in self._tensors:
                raise UnsupportedCheckpoint(f"the checkpoint has no tensor '{name}'")
        self._read.update(names)
        parts = [self._tensors.read(name).to(dtype or self._dtype) for name in names]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def projection(self, *names: str, bias: bool) -> Projection:
        """Read layers of the same input as one projection, in fp8 if the reader is."""
        weights = [f"{name}.weight" for name in names]
        added = self(*[f"{name}.bias" for name in names]) if bias else None
        if not self._fp8:
            return Linear(self(*weights), added)
        # Quantised from float32, so that it is rounded once.
        weight = self(*weights, dtype=torch.float32)
        if any(size % FP8_ALIGNMENT for size in weight.shape):
            raise UnsupportedCheckpoint(
                f"'{weights[0]}' belongs to a projection of shape {list(weight.shape)}; dtype fp8 needs multiples "
                f"of {FP8_ALIGNMENT}"
            )
        return Fp8Linear(quantise(weight), added)

    def unread(self, derived: set[str]) -> list[str]:
        """Names of tensors that were never read; `derived` ones may be left out. Logs what was dequantised."""
        self._tensors.report(self._dtype)
        left_over = set(self._tensors) - self._read - derived
        return sorted(name for name in left_over if not name.endswith(ROPE_BUFFER))


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
    read = CheckpointReader(checkpoint, device, dtype, fp8)
    embedding = read("model.embed_tokens.weight")
    if embedding.shape != (architecture.vocab_size, architecture.hidden_size):
        raise UnsupportedCheckpoint(
            f"the embedding has shape {list(embedding.shape)}, the config announces "
            f"{[architecture.vocab_size, architecture.hidden_size]}"
        )
    layers = tuple(
        _load_layer(read, f"model.layers.{index}", architecture) for index in range(architecture.layers)
    )
    final_norm = _norm(read, "model.norm", architecture)
    if architecture.is_classifier:
        head = read("score.weight")
    else:
        head = embedding if architecture.tied_head else read("lm_head.weight")
    if left_over := read.unread(derived={"lm_head.weight"} if architecture.tied_head else set()):
        raise UnsupportedCheckpoint(
            f"the checkpoint holds {len(left_over)} tensors that a {architecture.family} model does not have, "
            f"'{left_over[0]}' for one"
        )
    return Weights(embedding, layers, final_norm, head)


def _load_layer(read: CheckpointReader, prefix: str, a: Architecture) -> LayerWeights:
    def norm(name: str) -> Tensor:
        return _norm(read, f"{prefix}.{name}", a)

    attention, mlp = f"{prefix}.self_attn", f"{prefix}.mlp"
    return LayerWeights(
        input_norm=norm("input_layernorm"),
        qkv=read.projection(*[f"{attention}.{part}_proj" for part in "qkv"], bias=a.qkv_bias),
        q_norm=norm("self_attn.q_norm") if a.qk_norm else None,
        k_norm=norm("self_attn.k_norm") if a.qk_norm else None,
        output=read.projection(f"{attention}.o_proj", bias=a.output_bias),
        post_attention_norm=norm("post_attention_layernorm") if a.sandwich_norms else None,
        mlp_norm=norm("pre_feedforward_layernorm" if a.sandwich_norms else "post_attention_layernorm"),
        gate_up=read.projection(f"{mlp}.gate_proj", f"{mlp}.up_proj", bias=a.mlp_bias),
        down=read.projection(f"{mlp}.down_proj", bias=a.mlp_bias),
        post_mlp_norm=norm("post_feedforward_layernorm") if a.sandwich_norms else None,
    )


def _norm(read: CheckpointReader, name: str, a: Architecture) -> Tensor:
    """The weight of an RMSNorm, in float32; the one that Gemma leaves out is added."""
    weight = read(f"{name}.weight").float()
    return weight + 1 if a.norm_plus_one else weight
