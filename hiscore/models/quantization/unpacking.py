"""Parts that the formats share: integers out of 32-bit words, and scales spread over what they scale."""

import math

import torch
from torch import Tensor

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""Values of the 16 codes of a float of 4 bits."""


def of_dtype(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a weight, or raise ValueError if it is of another dtype."""
    if weight.dtype != dtype:
        found, wanted = (str(each).removeprefix("torch.") for each in (weight.dtype, dtype))
        raise ValueError(f"the weight is {found}, not {wanted}")
    return weight


def unpack_e2m1(packed: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers in uint8 [..., n], [..., 2 n]; the lower half of a byte is the first. Else ValueError."""
    codes = torch.stack((of_dtype(packed, torch.uint8) & 0xF, packed >> 4), dim=-1).flatten(-2)
    return torch.tensor(E2M1, dtype=dtype, device=packed.device)[codes.int()]


def nvfp4(packed: Tensor, scales: Tensor) -> Tensor:
    """Numbers in `packed`, uint8 [out, in / 2], times the scales of neighbours, float32 [out, in / 16]."""
    return scale(unpack_e2m1(packed, torch.float32), scales)


def unpack(words: Tensor, bits: int) -> Tensor:
    """Split int32 words, [..., n], into unsigned integers, the lowest bits first: int32 [..., n 32 / bits]."""
    shifts = torch.arange(0, 32, bits, dtype=torch.int32, device=words.device)
    # The shift copies the sign bit; the mask removes the copies.
    integers: Tensor = ((words[..., None] >> shifts) & (2**bits - 1)).flatten(-2)
    return integers


def scale(
    values: Tensor, scales: Tensor, zeros: Tensor | None = None, block: tuple[int, int] | None = None
) -> Tensor:
    """(values - zeros) * scales, in float32.

    Args:
        values: [out, in].
        scales: One number, [out] or [out, 1], or a grid with a scale for each block of `values`; the grid's last
            blocks may be cut by the edges.
        zeros: In the same shape as `scales`.
        block: Rows and columns of a block; None: the grid divides `values` evenly.
    """
    out = values.float()
    grid = _grid(scales, values.shape)
    size = _block(grid.shape, values.shape, block)
    if zeros is not None:
        if zeros.numel() != grid.numel():
            raise ValueError(f"{list(zeros.shape)} zero points do not fit {list(grid.shape)} scales")
        out = out - _spread(zeros.reshape(grid.shape).float(), values.shape, size)
    return out * _spread(grid.float(), values.shape, size)


def scales_of_rows(scales: Tensor, shape: torch.Size, block: tuple[int, int] | None) -> tuple[Tensor, int]:
    """Scales of each row's blocks, float32 [out, blocks], and a block's columns; ValueError: they do not fit."""
    grid = _grid(scales, shape)
    height, width = _block(grid.shape, shape, block)
    return grid.float().repeat_interleave(height, dim=0)[: shape[0]], width


def _grid(scales: Tensor, shape: torch.Size) -> Tensor:
    if scales.numel() == 1:
        return scales.reshape(1, 1)
    return scales[:, None] if scales.shape == shape[:1] else scales


def _block(grid: torch.Size, shape: torch.Size, announced: tuple[int, int] | None) -> tuple[int, int]:
    rows, columns = shape
    if announced and grid not in ((1, 1), (rows, 1)):
        if grid == (math.ceil(rows / announced[0]), math.ceil(columns / announced[1])):
            return announced
    elif len(grid) == 2 and rows % grid[0] == columns % grid[1] == 0:
        return rows // grid[0], columns // grid[1]
    blocks = f" in blocks of {list(announced)}" if announced else ""
    raise ValueError(f"{list(grid)} scales do not fit a weight of shape {list(shape)}{blocks}")


def _spread(grid: Tensor, shape: torch.Size, block: tuple[int, int]) -> Tensor:
    if grid.numel() == 1 or grid.shape == (shape[0], 1):
        return grid  # broadcast
    rows = grid.repeat_interleave(block[0], dim=0)[: shape[0]]
    return rows.repeat_interleave(block[1], dim=1)[:, : shape[1]]
