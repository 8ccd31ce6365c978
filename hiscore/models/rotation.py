"""Orthogonal matrices that spread outliers over all columns, and what absorbs them into a checkpoint's weights.

RMS norms do not see a rotation of the residual stream. So the embedding and every weight that reads or adds to the
stream can be rotated once, when they are loaded, together with values and the output of attention; norms go into
the weights that follow them. The scores stay the same, and what is quantised has no outliers left. Needs no data.
Source: QuaRot (arXiv 2404.00456).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.layers.eight_bits import EightBits

MOST_OF_A_FACTOR = 64
"""Rows of a factor that is a power of two; the product with several small factors takes less than with one."""
NUMBERS_AT_ONCE = 2**22
"""Of a weight that are rotated at once, in float64."""


@dataclass(frozen=True)
class Rotation:
    """An orthogonal matrix: random signs, times the Kronecker product of small matrices.

    Attributes:
        signs: float64 [size], of the rows.
        factors: float64 [n, n] each, whose sizes multiply up to `size`.
    """

    signs: Tensor
    factors: tuple[Tensor, ...]

    @staticmethod
    def of(size: int, seed: int = 0) -> "Rotation":
        """One of this size; every number of it is about 1 / sqrt(size)."""
        generator = torch.Generator().manual_seed(seed)
        signs = torch.randint(0, 2, (size,), generator=generator) * 2.0 - 1
        return Rotation(signs.double(), tuple(_factors(size)))

    @property
    def size(self) -> int:
        return len(self.signs)

    def columns(self, weight: Tensor) -> Tensor:
        """weight [rows, n size] times the matrix, each `size` columns by themselves, in weight's dtype."""
        return _by_slices(weight, self._applied)

    def rows(self, weight: Tensor) -> Tensor:
        """The matrix transposed times weight [n size, columns], each `size` rows by themselves."""
        return self.columns(weight.T).T.contiguous()

    def vector(self, bias: Tensor) -> Tensor:
        """bias [n size], as `rows` of a matrix of one column."""
        return self.columns(bias[None]).squeeze(0)

    def _applied(self, x: Tensor) -> Tensor:
        """x: float64 [rows, n size]."""
        sizes = [len(factor) for factor in self.factors]
        out = (x.unflatten(1, (-1, self.size)) * self.signs.to(x.device)).unflatten(2, sizes)
        for axis, factor in enumerate(self.factors, start=2):
            out = (out.movedim(axis, -1) @ factor.to(x.device)).movedim(-1, axis)
        applied: Tensor = out.reshape(x.shape)
        return applied


def _factors(size: int) -> Iterator[Tensor]:
    """Hadamard matrices for the powers of two in a size, a Hartley matrix for what is left."""
    power = size & -size
    if size > power or size == 1:
        yield hartley(size // power)
    while power > 1:
        yield hadamard(min(power, MOST_OF_A_FACTOR))
        power //= MOST_OF_A_FACTOR


def hadamard(size: int) -> Tensor:
    """Sylvester's matrix over the root of its size, a power of two: float64 [size, size], orthogonal."""
    matrix = torch.ones(1, 1, dtype=torch.float64)
    while len(matrix) < size:
        matrix = torch.cat((torch.cat((matrix, matrix), 1), torch.cat((matrix, -matrix), 1)))
    normed: Tensor = matrix / math.sqrt(size)
    return normed


def hartley(size: int) -> Tensor:
    """cos + sin of the angles of a Fourier transform, over the root of the size: float64, orthogonal."""
    steps = torch.arange(size, dtype=torch.float64)
    angles = 2 * math.pi / size * (steps[:, None] * steps % size)
    normed: Tensor = (angles.cos() + angles.sin()) / math.sqrt(size)
    return normed


@dataclass(frozen=True)
class Fold:
    """What a projection absorbs: the norm of its input, and the rotations on both of its sides.

    Attributes:
        into: The format that it becomes; None: the model's dtype.
        norm: float32 [in].
        inputs: The rotation of what it reads; None: it is not rotated.
        outputs: The rotation of what it writes, from `first_output` on; None: it is not rotated.
    """

    into: EightBits | None = None
    norm: Tensor | None = None
    inputs: Rotation | None = None
    outputs: Rotation | None = None
    first_output: int = 0

    @property
    def reads(self) -> torch.dtype | None:
        """What its weight is read in, so that it is rounded once; None: the model's dtype."""
        unchanged = self.norm is None and self.inputs is None and self.outputs is None
        return None if unchanged else torch.float32

    def weight(self, weight: Tensor) -> Tensor:
        """weight: [out, in]."""
        if self.norm is not None:
            norm = self.norm.double()
            weight = _by_slices(weight, lambda rows: rows * norm)
        if self.inputs is not None:
            weight = self.inputs.columns(weight)
        if self.outputs is not None:
            kept, turned = weight[: self.first_output], weight[self.first_output :]
            weight = torch.cat((kept, self.outputs.rows(turned)))
        return weight

    def bias(self, bias: Tensor) -> Tensor:
        """bias: [out]."""
        if self.outputs is None:
            return bias
        return torch.cat((bias[: self.first_output], self.outputs.vector(bias[self.first_output :])))


UNFOLDED = Fold()


def _by_slices(x: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Apply `change` to some rows of x at a time, in float64, and round to x's dtype."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    step = max(NUMBERS_AT_ONCE // max(x.shape[1], 1), 1)
    for begin in range(0, len(x), step):
        out[begin : begin + step] = change(x[begin : begin + step].double())
    return out
