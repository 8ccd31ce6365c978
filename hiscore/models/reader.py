"""Reads a checkpoint's tensors by name, in the dtype and on the device of the model."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hiscore.layers.weights import FP8_ALIGNMENT, Fp8Linear, Linear, Projection, quantise
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.quantization.tensors import CheckpointTensors

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROPE_BUFFER = ".rotary_emb.inv_freq"
"""Stored by old checkpoints; it follows from the config."""


class CheckpointReader:
    """Reads tensors by name, checks their shapes, converts and moves them, and keeps track of those never read."""

    def __init__(self, checkpoint: Path, device: torch.device, dtype: torch.dtype, fp8: bool) -> None:
        self.dtype, self._fp8 = dtype, fp8
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

    def projection(
        self, outs: Mapping[str, int], inner: int, bias: bool, order: Tensor | None = None
    ) -> Projection:
        """Read layers of the same input as one projection, in fp8 if the reader is.

        Args:
            outs: Name and width of each layer, in order.
            inner: Width of the input.
            bias: Whether they have biases.
            order: int64, of all the outputs; None: as they are.
        """
        weights = {f"{name}.weight": (out, inner) for name, out in outs.items()}
        added = self._joined({f"{name}.bias": (out,) for name, out in outs.items()}) if bias else None
        # Quantised from float32, so that it is rounded once.
        weight = self._joined(weights, torch.float32 if self._fp8 else None)
        if order is not None:
            order = order.to(weight.device)
            weight, added = weight[order], None if added is None else added[order]
        if not self._fp8:
            return Linear(weight, added)
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
        self._tensors.report(self.dtype)
        left_over = set(self._tensors) - self._read - {HEAD}
        return sorted(name for name in left_over if not name.endswith(ROPE_BUFFER))

    def _joined(self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype | None = None) -> Tensor:
        """Read tensors of known shapes, joined along their first dimension."""
        if missing := [name for name in shapes if name not in self._tensors]:
            raise UnsupportedCheckpoint(f"the checkpoint has no tensor '{missing[0]}'")
        self._read.update(shapes)
        parts = [self._tensors.read(name).to(dtype or self.dtype) for name in shapes]
        for part, (name, shape) in zip(parts, shapes.items(), strict=True):
            if part.shape != shape:
                raise UnsupportedCheckpoint(
                    f"'{name}' has shape {list(part.shape)}, the config announces {list(shape)}"
                )
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)
