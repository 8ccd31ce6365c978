"""Packed attention on CUDA, by the kernels of `hiscore.kernels.attention_tiles` and `packed_attention`."""

from collections.abc import Container
from dataclasses import dataclass
from functools import partial

import torch
import triton
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.tile_inputs import (
    BLOCK,
    GROUP_FIELDS,
    HEADER,
    NO_KEY,
    TILE_FIELDS,
    max_tiles,
    most_columns,
)
from hiscore.kernels.attention_tiles import attention_tiles
from hiscore.kernels.dot_size import dot_size
from hiscore.kernels.packed_attention import packed_attention

REGISTERS = 65_536
"""Registers of a multiprocessor. Threads get multiples of 8."""
WARP = 32
MIN_PADDED_ROWS = 16
"""Rows that a program of `attention_tiles` is compiled for, at least. It has a warp for so many."""
SCORED_BLOCK = 128
"""Scored rows that it compares at once."""


@dataclass(frozen=True)
class TileLaunch:
    m: int
    """Query rows of a tile, times the heads that share a key head."""
    n: int
    warps: int
    stages: int
    programs: int
    """Per multiprocessor."""

    @property
    def registers(self) -> int:
        """Registers of a thread with which all programs of a multiprocessor run at once."""
        return min(255, REGISTERS // (self.programs * self.warps * WARP) // 8 * 8)


def choose_launch(head_dim: int, group: int, dtype: torch.dtype) -> TileLaunch:
    """Block sizes that fit registers and shared memory, measured on an H200."""
    m = dot_size(group)
    if dtype == torch.float32:
        return TileLaunch(max(m, 32), BLOCK, 4, 1, 1)
    if head_dim > 128:
        return TileLaunch(max(m, 64), BLOCK, 4, 2, 2)
    return TileLaunch(max(m, 64), BLOCK, 4, 3, 3)


class TileTables:
    """Tables that the device makes of a description; all int32, one forward at a time."""

    def __init__(self, rows: int, rows_per_tile: int, device: torch.device) -> None:
        # Every group has at least one row, so there are at most as many groups as rows.
        tiles = max_tiles(rows, rows, rows_per_tile)
        make = partial(torch.empty, dtype=torch.int32, device=device)
        self.segment_starts = make(rows)
        self.tiles = make((tiles, TILE_FIELDS))
        self.scored_tiles = make((tiles, TILE_FIELDS))
        self.columns = make(most_columns(rows))


@dataclass
class TileInputs:
    """Inputs of the kernels on the device; all int32."""

    positions: Tensor  # [T]
    described: Tensor
    """Layout: see `tile_inputs.Description.write`."""
    context_slots: Tensor  # [N]
    tables: TileTables
    window_slots: Tensor | None = None
    """[N]: instead of `context_slots` in layers that keep a window only, if there are any."""


class TritonAttention:
    """`Attention` over `inputs`, which its owner sets, and has cut into tiles, before each forward."""

    def __init__(
        self, shape: AttentionShape, dtype: torch.dtype, multiprocessors: int, windowed: Container[int] = ()
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

    def cut_into_tiles(self) -> None:
        """Fill the tables of `inputs`: to be launched before the first layer."""
        inputs = self.inputs
        assert inputs is not None
        tables, rows = inputs.tables, self.rows_per_tile
        padded = max(MIN_PADDED_ROWS, triton.next_power_of_2(rows))
        most_segments = len(tables.segment_starts)
        attention_tiles[(self._programs,)](
            inputs.described, tables.segment_starts, tables.tiles, tables.scored_tiles, tables.columns,
            HEADER=HEADER, GROUP_FIELDS=GROUP_FIELDS, TILE_FIELDS=TILE_FIELDS,
            TILE_ROWS=rows, PADDED_ROWS=padded, BLOCK=BLOCK, NO_KEY=NO_KEY,
            FIRST_STEP=triton.next_power_of_2(max(most_segments, 2)) // 2, SCORED_BLOCK=SCORED_BLOCK,
            num_warps=padded // MIN_PADDED_ROWS,
        )  # fmt: skip

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        shape, launch, inputs = self._shape, self._launch, self.inputs
        sinks = shape.sinks
        assert inputs is not None
        out = torch.empty((len(qkv), shape.heads * shape.head_dim), dtype=qkv.dtype, device=qkv.device)
        tables = inputs.tables
        # Only scored rows of the last layer are read.
        tiles = tables.scored_tiles if layer == len(shape.windows) - 1 else tables.tiles
        slots = inputs.window_slots if layer in self._windowed else inputs.context_slots
        packed_attention[(self._programs,)](
            qkv, pool, out, inputs.positions, tables.segment_starts, tiles, tables.columns,
            inputs.described[:1], slots, qkv if sinks is None else sinks[layer],
            shape.scale, shape.soft_cap or 0.0, pool.stride(0),
            HEADS=shape.heads, KV_HEADS=shape.kv_heads, HEAD_DIM=shape.head_dim,
            PADDED_DIM=dot_size(shape.head_dim),
            WINDOW=shape.windows[layer] or 0, CAPPED=shape.soft_cap is not None, SINKS=sinks is not None,
            M=launch.m, N=launch.n, TILE_FIELDS=TILE_FIELDS, PRECISION=self._precision,
            num_warps=launch.warps, num_stages=launch.stages, maxnreg=launch.registers,
        )  # fmt: skip
        return out
