"""A projection whose weight is in fp8 with a scale for each block of columns, as fp8 checkpoints have it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from hiscore.layers.fp8 import Quantised

BLOCKS = (32, 64, 128)


@dataclass(frozen=True)
class BlockFp8Linear:
    """A projection in fp8. Its result is bfloat16."""

    values: Tensor  # float8_e4m3fn [out, in]
    scales: Tensor  # float32 [out, blocks]: of each row's blocks of columns
    block: int
    """Columns of a block, of `BLOCKS`; the last may be shorter."""
    bias: Tensor | None = None  # bfloat16 [out]
    reads_fp8: ClassVar[bool] = True

    def __call__(self, x: Quantised) -> Tensor:
        if x.values.is_cuda:
            from hiscore.kernels import block_fp8

            return block_fp8.multiply(x.values, x.scales, self.values, self.scales, self.bias, self.block)
        return self.reference(x)

    def reference(self, x: Quantised) -> Tensor:
        """The same in PyTorch, for the CPU, which can compute it but does not serve it."""
        each = self.scales.repeat_interleave(self.block, dim=1)[:, : self.values.shape[1]]
        out = ((x.values.float() @ (self.values.float() * each).T) * x.scales).to(torch.bfloat16)
        return out if self.bias is None else out.add_(self.bias)
