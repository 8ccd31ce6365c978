"""Attention in both directions on CUDA, by the kernel of `hiscore.kernels.bidirectional_attention`."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hiscore.attention.bidirectional import BidirectionalShape, RelativeProjections
from hiscore.attention.packed_triton import TileLaunch
from hiscore.kernels.bidirectional_attention import bidirectional_attention
from hiscore.kernels.dot_size import dot_size


def choose_launch(head_dim: int, dtype: torch.dtype) -> TileLaunch:
    """Block sizes that fit registers and shared memory."""
    if dtype == torch.float32:
        return TileLaunch(32, 32, 4, 1, 1)
    return TileLaunch(64, 32, 4, 3 if head_dim <= 128 else 2, 3 if head_dim <= 128 else 2)


@dataclass
class SegmentInputs:
    """Inputs of the kernel on the device; all int32. See `tiles.Tiles`."""

    segment_starts: Tensor  # [T]
    segment_ends: Tensor  # [T]
    tiles: Tensor  # [tiles 2]
    tile_count: Tensor  # [2]: all tiles, and those that hold a row that is read, which come first


class TritonBidirectionalAttention:
    """`BidirectionalAttention` over `inputs`, which its owner sets before each forward."""

    def __init__(self, shape: BidirectionalShape, dtype: torch.dtype, multiprocessors: int) -> None:
        self._shape = shape
        self._launch = choose_launch(shape.head_dim, dtype)
        self._programs = self._launch.programs * multiprocessors
        # Triton's default for float32 would be TF32, with 10 bits of mantissa.
        self._precision = "ieee" if dtype == torch.float32 else "tf32"
        self.inputs: SegmentInputs | None = None

    @property
    def rows_per_tile(self) -> int:
        return self._launch.m

    def attend(self, layer: int, qkv: Tensor, relative: RelativeProjections | None) -> Tensor:
        shape, launch, inputs = self._shape, self._launch, self.inputs
        assert inputs is not None
        out = torch.empty((len(qkv), shape.heads * shape.head_dim), dtype=qkv.dtype, device=qkv.device)
        # Only rows that are read are computed in the last layer.
        count = inputs.tile_count[1:] if layer == len(shape.reaches) - 1 else inputs.tile_count
        reach = shape.reaches[layer]
        q, k, _ = qkv.unflatten(1, (3, shape.heads, shape.head_dim)).unbind(1)
        relative = relative or RelativeProjections(None, None)
        of_rows, of_columns = by_position(q, relative.keys), by_position(k, relative.queries)
        if relative.biases is not None:
            # The kernel scales what it gathers.
            of_rows = (relative.biases / shape.scale)[:, None].repeat(1, len(qkv), 1)
        tables = [table for table in (of_rows, of_columns) if table is not None]
        bidirectional_attention[(self._programs,)](
            qkv, out, inputs.segment_starts, inputs.segment_ends, inputs.tiles, count,
            qkv if of_rows is None else of_rows, qkv if of_columns is None else of_columns,
            inputs.tiles if shape.relative_rows is None else shape.relative_rows,
            shape.farthest, len(qkv), shape.scale,
            HEADS=shape.heads, HEAD_DIM=shape.head_dim,
            PADDED_DIM=dot_size(shape.head_dim),
            REACH=-1 if reach is None else reach, C2P=of_rows is not None, P2C=of_columns is not None,
            CAUSAL=shape.causal, POSITIONS=tables[0].shape[2] if tables else 0,
            M=launch.m, N=launch.n, PRECISION=self._precision,
            num_warps=launch.warps, num_stages=launch.stages,
        )  # fmt: skip
        return out


def by_position(x: Tensor, table: Tensor | None) -> Tensor | None:
    """The product of every row's heads, x [T, heads, head_dim], with every relative position: [heads, T, P]."""
    return None if table is None else torch.bmm(x.transpose(0, 1), table.mT)
