"""Packed attention on CUDA, by the kernel of `hiscore.kernels.packed_attention`."""

from collections.abc import Container
from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.attention import own_keys
from hiscore.attention.base import AttentionShape
from hiscore.kernels.dot_size import dot_size
from hiscore.kernels.packed_attention import packed_attention

REGISTERS = 65_536
"""Of a multiprocessor. Threads get multiples of 8."""
WARP = 32


@dataclass(frozen=True)
class Launch:
    """How the kernel is launched."""

    m: int
    """Query rows of a tile, times the heads that share a key head."""
    n: int
    """Keys at a time."""
    warps: int
    stages: int
    programs: int
    """Per multiprocessor."""

    @property
    def registers(self) -> int:
        """Of a thread, so that all programs of a multiprocessor run at once."""
        return min(255, REGISTERS // (self.programs * self.warps * WARP) // 8 * 8)


def choose_launch(head_dim: int, group: int, dtype: torch.dtype) -> Launch:
    """Block sizes that fit registers and shared memory, measured on an H200."""
    m = dot_size(group)
    if dtype == torch.float32:
        return Launch(max(m, 32), own_keys.BLOCK, 4, 1, 1)
    if head_dim > 128:
        return Launch(max(m, 64), own_keys.BLOCK, 4, 2, 2)
    return Launch(max(m, 64), own_keys.BLOCK, 4, 3, 3)


@dataclass
class TileInputs:
    """What the kernel reads, on the device; all int32. See `tiles.Tiles` and `own_keys`."""

    positions: Tensor
    """[T]"""
    segment_starts: Tensor
    """[T]"""
    tiles: Tensor
    """[tiles own_keys.FIELDS + columns]"""
    tile_count: Tensor
    """[2]: all tiles, and those that hold a scored row, which come first."""
    context_slots: Tensor
    """[N]"""
    window_slots: Tensor | None = None
    """[N]: instead of these in layers that keep a window only, if there are any."""


class TritonAttention:
    """`Attention` over `inputs`, which its owner sets before each forward."""

    def __init__(
        self,
        shape: AttentionShape,
        dtype: torch.dtype,
        multiprocessors: int,
        windowed: Container[int] = (),
    ) -> None:
        """Choose a launch. windowed: layers that keep a window only."""
        self._shape, self._windowed = shape, windowed
        self._launch = choose_launch(shape.head_dim, shape.heads // shape.kv_heads, dtype)
        self._programs = self._launch.programs * multiprocessors
        # Triton's default for float32 would be TF32, with 10 bits of mantissa.
        self._precision = "ieee" if dtype == torch.float32 else "tf32"
        self.inputs: TileInputs | None = None

    @property
    def rows_per_tile(self) -> int:
        return self._launch.m // (self._shape.heads // self._shape.kv_heads)

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        shape, launch, inputs = self._shape, self._launch, self.inputs
        sinks = shape.sinks
        assert inputs is not None
        out = torch.empty((len(qkv), shape.heads * shape.head_dim), dtype=qkv.dtype, device=qkv.device)
        # Only scored rows of the last layer are read.
        count = inputs.tile_count[1:] if layer == len(shape.windows) - 1 else inputs.tile_count
        slots = inputs.window_slots if layer in self._windowed else inputs.context_slots
        packed_attention[(self._programs,)](
            qkv, pool, out, inputs.positions, inputs.segment_starts, inputs.tiles, count,
            slots, qkv if sinks is None else sinks[layer],
            shape.scale, shape.soft_cap or 0.0, pool.stride(0),
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD_DIM=shape.head_dim,
            PADDED_DIM=dot_size(shape.head_dim),
            WINDOW=shape.windows[layer] or 0, CAPPED=shape.soft_cap is not None, SINKS=sinks is not None,
            M=launch.m, N=launch.n, TILE_FIELDS=own_keys.FIELDS, PRECISION=self._precision,
            num_warps=launch.warps, num_stages=launch.stages, maxnreg=launch.registers,
        )  # fmt: skip
        return out
