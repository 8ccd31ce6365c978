"""Reads a checkpoint's tensors by name, in the dtype and on the device of the model."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import gcd
from pathlib import Path

import torch
from torch import Tensor

from hiscore.layers.fp8 import ALIGNMENT, FP8, Fp8Linear, Quantised, quantise
from hiscore.layers.scaled_fp8 import COLUMNS, ScaledLinear
from hiscore.layers.weights import Linear, Projection, Scales
from hiscore.models.cut import UNCUT, Cut, narrowed, scales_of
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.model_classes import own_code
from hiscore.models.quantization.tensors import CheckpointTensors, check_shape
from hiscore.models.text_towers import LOOKAHEAD

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
ROPE_BUFFER = ".rotary_emb.inv_freq"
"""Stored by old checkpoints; it follows from the config."""


class CheckpointReader:
    """Reads tensors by name, checks their shapes, converts and moves them, and keeps track of those never read."""

    def __init__(
        self,
        checkpoint: Path,
        device: torch.device,
        dtype: torch.dtype,
        keeps_fp8: bool = False,
        within: str = "",
    ) -> None:
        """Open a checkpoint; `keeps_fp8` leaves projections in fp8 where they are stored so, and only there.

        `within` is the beginning of names that a model saved without a head lacks.
        """
        self.dtype, self.device = dtype, device
        self._keeps_fp8 = keeps_fp8
        self._checkpoint, self._tensors = checkpoint, CheckpointTensors(checkpoint, device, within)
        self._read: set[str] = set()

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str, *shape: int, dtype: torch.dtype | None = None, cut: Cut = UNCUT) -> Tensor:
        """Read a tensor, or a part of it, or raise `UnsupportedCheckpoint`: none has this name and shape."""
        return self._joined({name: shape}, dtype, cut)

    def leave(self, names: Iterable[str]) -> None:
        """Leave tensors, which must be there, to other ranks."""
        names = list(names)
        self._check_names(names)
        self._read.update(names)

    def projection(
        self,
        outs: Mapping[str, int],
        inner: int,
        bias: bool,
        order: Tensor | None = None,
        cut: Cut = UNCUT,
        adds_bias: bool = True,
        fp8: bool = False,
    ) -> Projection:
        """Read layers of the same input as one projection.

        Args:
            outs: Name and width of each layer, in order.
            order: int64, of the outputs that are read; None: as they are.
            cut: The part that is read; its rows are those of all layers, one behind another.
            fp8: It becomes one in fp8; of a checkpoint that keeps fp8, if it is stored so.
        """
        weights = {f"{name}.weight": (out, inner) for name, out in outs.items()}
        biases, added = {f"{name}.bias": (out,) for name, out in outs.items()}, None
        if bias and adds_bias:
            added = self._joined(biases, cut=Cut(cut.rows))
        elif bias:
            self.leave(biases)
        if order is not None:
            order = order.to(self.device)
            added = None if added is None else added[order]
        if fp8 and self._keeps_fp8 and (kept := self._kept_in_fp8(weights, added, order, cut)):
            return kept
        # Quantised from float32, so that it is rounded once.
        quantises = fp8 and not self._keeps_fp8
        weight = self._joined(weights, torch.float32 if quantises else None, cut)
        if order is not None:
            weight = weight[order]
        if not quantises:
            return Linear(weight, added)
        if any(size % ALIGNMENT for size in weight.shape):
            raise UnsupportedCheckpoint(
                f"'{next(iter(weights))}' belongs to a projection of shape {list(weight.shape)}; dtype fp8 needs "
                f"multiples of {ALIGNMENT}"
            )
        return Fp8Linear(quantise(weight), added)

    def _kept_in_fp8(
        self, weights: Mapping[str, tuple[int, int]], bias: Tensor | None, order: Tensor | None, cut: Cut
    ) -> Projection | None:
        """A projection of weights as they are stored; None if no kernel takes them."""
        if (stored := self._in_fp8(weights, cut)) is None:
            return None
        values, scales, block = stored
        if order is not None:
            values, scales = values[order], scales[order]
        values = values.view(FP8)
        if scales.shape[1] == 1 and not any(size % ALIGNMENT for size in values.shape):
            kept: Projection = Fp8Linear(Quantised(values, scales), bias)
        elif block in COLUMNS:
            kept = ScaledLinear(values, Scales(scales, 1, block, powers_of_two=False), bias)
        else:
            return None
        self._read.update(weights)
        self._tensors.kept(values.numel())
        return kept

    def scaled(
        self, weights: Mapping[str, tuple[int, int]], cut: Cut = UNCUT
    ) -> tuple[Tensor, Scales] | None:
        """Read weights of the same input as one, as they are stored, if that is fp8 in blocks.

        The result is float8_e4m3fn [out, in] and its scales. A cut's rows are those of all weights, one behind
        another. None, and nothing counts as read, if weights are stored otherwise or a part of a block has no size
        that a product takes.
        """
        if (stored := self._in_fp8(weights, cut)) is None or stored[2] not in COLUMNS:
            return None
        assert self._tensors.format is not None
        high = gcd(self._tensors.format.rows_of_a_block, *_boundaries(list(weights.values()), cut))
        values, scales, block = stored
        self._read.update(weights)
        self._tensors.kept(values.numel())
        of_blocks = scales[::high].contiguous()
        return values.view(FP8), Scales(of_blocks, high, block, self._tensors.format.powers_of_two)

    def _in_fp8(self, weights: Mapping[str, tuple[int, int]], cut: Cut) -> tuple[Tensor, Tensor, int] | None:
        """Weights as one, as bytes since torch joins no tensors of float8; scales of rows; columns of a block."""
        self._check_names(weights)
        found = [part for name in weights if (part := self._tensors.read_fp8(name))]
        if len(found) < len(weights) or len({width for *_, width in found}) > 1:
            return None
        for (values, *_), (name, shape) in zip(found, weights.items(), strict=True):
            check_shape(name, values.shape, shape)
        size, width = found[0][0].shape[1], found[0][2]
        columns = cut.columns or slice(0, size)
        if cut.columns is not None:
            width = min(width, size)
        narrow = narrowed(width, columns, size)
        scales = Cut(cut.rows).of(torch.cat([scales for _, scales, _ in found]))
        values = cut.of(torch.cat([values.view(torch.uint8) for values, *_ in found]))
        return values, scales_of(scales, width, narrow, columns), narrow

    def equal(self, one: str, other: str) -> bool:
        return self._tensors.equal(one, other)

    def unread(self) -> list[str]:
        """Names of tensors that were never read and may change the result. Logs what was dequantised.

        A causal LM's head is left over where it is tied to the embedding, or the LM became a classifier.
        """
        self._tensors.report(self.dtype)
        left_over = set(self._tensors) - self._read - {HEAD}
        return sorted(
            name for name in left_over if not name.endswith(ROPE_BUFFER) and not name.startswith(LOOKAHEAD)
        )

    def refuse(self, left_over: Sequence[str], family: str) -> None:
        """Raise `UnsupportedCheckpoint` if tensors are left over that a model of the family does not have."""
        if left_over:
            raise self._refused(
                f"the checkpoint holds {len(left_over)} tensors that a {family} model does not have, "
                f"'{left_over[0]}' for one"
            )

    def _joined(
        self, shapes: Mapping[str, tuple[int, ...]], dtype: torch.dtype | None = None, cut: Cut = UNCUT
    ) -> Tensor:
        """Read tensors of known shapes, joined along their first dimension, or a part of that."""
        self._check_names(shapes)
        self._read.update(shapes)
        parts, begin = [], 0
        for name, shape in shapes.items():
            part = self._tensors.read(name, shape, cut.within(begin, shape[0]))
            parts.append(part.to(dtype or self.dtype))
            begin += shape[0]
        return parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)

    def _check_names(self, names: Iterable[str]) -> None:
        if missing := [name for name in names if name not in self._tensors]:
            raise self._refused(f"the checkpoint has no tensor '{missing[0]}'")

    def _refused(self, reason: str) -> UnsupportedCheckpoint:
        config = self._checkpoint / "config.json"
        return UnsupportedCheckpoint(
            reason + (own_code(json.loads(config.read_text())) if config.is_file() else "")
        )


def widths_of(prefix: str, names: Sequence[str], widths: Sequence[int]) -> dict[str, int]:
    """The outputs of layers with these names; one name: the checkpoint holds them as one."""
    if len(names) == 1:
        return {f"{prefix}.{names[0]}": sum(widths)}
    return {f"{prefix}.{name}": width for name, width in zip(names, widths, strict=True)}


def _boundaries(shapes: Sequence[tuple[int, int]], cut: Cut) -> Iterator[int]:
    """Beginnings of the rows that are read of weights, in each of them and one behind another."""
    before = read = 0
    for rows, _ in shapes:
        for part in cut.within(before, rows).rows or (slice(0, rows),):
            yield from (part.start, read)
            read += part.stop - part.start
        before += rows
