"""What DTYPE=int8 does with a checkpoint: which projections are in 8 bits, and what is folded into the weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.layers.eight_bits import EightBits
from hiscore.models.config import Architecture
from hiscore.models.rotation import Fold, Rotation

PROJECTIONS = {
    "qkv": ("q_proj", "k_proj", "v_proj", "qkv_proj"),
    "output": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj", "gate_up_proj"),
    "down": ("down_proj",),
}
"""Of a layer, and what a checkpoint calls their parts."""


@dataclass(frozen=True)
class Int8Design:
    """How a checkpoint becomes one in int8.

    Attributes:
        rotated: Whether rotations are folded into the weights.
        kept: Of `PROJECTIONS`, those that stay in the model's dtype.
    """

    rotated: bool = True
    kept: frozenset[str] = frozenset()

    def in_int8(self, tensor: str) -> bool:
        """Whether a tensor of a checkpoint, which is part of a projection, is in 8 bits."""
        return not any(f".{part}." in tensor for name in self.kept for part in PROJECTIONS[name])


SERVED = Int8Design()
"""Which projections to keep is for `perf.quality.int8_designs` to say; it has not been recorded yet."""


def more_bytes(a: Architecture, number_bytes: int) -> int:
    """What folding adds to the weights: a tied head absorbs the final norm, which the embedding does not.

    Args:
        a: With the vocabulary of this rank.
        number_bytes: Bytes of one number in the model's dtype.
    """
    return a.vocab_size * a.hidden_size * number_bytes if a.tied_head else 0


class Folding:
    """What each weight of a checkpoint absorbs, and which of them are in 8 bits."""

    def __init__(self, into: EightBits | None, a: Architecture, design: Int8Design = SERVED) -> None:
        """Plan it.

        Args:
            into: The 8-bit format of the layers' projections; None: the model's dtype.
            a: What this rank has of the checkpoint's architecture.
            design: For int8.
        """
        int8 = into is EightBits.INT8
        self._into, self._kept = into, design.kept if int8 else frozenset()
        self._stream = Rotation.of(a.hidden_size) if int8 and design.rotated else None
        self._head = Rotation.of(a.head_dim) if int8 and design.rotated else None
        self._first_value = (a.heads + a.kv_heads) * a.head_dim

    @property
    def changes_weights(self) -> bool:
        """Whether anything is folded."""
        return self._stream is not None

    def embedding(self, table: Tensor) -> Tensor:
        """table: [vocabulary, hidden]."""
        return table if self._stream is None else self._stream.columns(table)

    def head(self, weight: Tensor, norm: Tensor) -> Tensor:
        """weight: [n, hidden]; norm: the final one."""
        return weight if self._stream is None else Fold(None, norm, self._stream).weight(weight)

    def norm(self, norm: Tensor) -> Tensor:
        """A norm of the stream once it is folded into what reads it."""
        return norm if self._stream is None else torch.ones_like(norm)

    def of(self, name: str, norm: Tensor | None = None) -> Fold:
        """What one of `PROJECTIONS` absorbs, and its format.

        Args:
            name: The projection.
            norm: float32 [in]: the norm of its input; None: there is none to absorb.
        """
        into = None if name in self._kept else self._into
        if self._stream is None:
            return Fold(into)
        folds = {
            "qkv": Fold(into, norm, self._stream, self._head, self._first_value),
            "output": Fold(into, None, self._head, self._stream),
            "gate_up": Fold(into, norm, self._stream),
            "down": Fold(into, None, None, self._stream),
        }
        return folds[name]
