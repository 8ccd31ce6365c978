"""`Recurrence` of gated delta nets by kernels, over a table of the forward: captured once, they serve any."""

import torch
import triton
from torch import Tensor

from hiscore.kernels.dot_size import dot_size
from hiscore.kernels.gated_delta_net import convolve, gated_norm, keep_tails
from hiscore.kernels.gated_delta_rule import chain_states, chunk_systems
from hiscore.recurrence.chunk_tables import CHAIN_FIELDS, HEADER, ROWS_OF_CHUNK, ChunkTables
from hiscore.recurrence.gated_delta_net import NORM_OF_KEYS_EPS, RecurrentShape, RecurrentWeights
from hiscore.recurrence.metadata import CHUNK, MOST_QUERIES
from hiscore.recurrence.state_pool import StatePool

ROWS_OF_CONVOLUTION = 16
"""Rows that a program convolves at once."""
MIN_BLOCK = 64
"""Columns of a factor in shared memory, at least. Behind narrower ones, in 16 bits, the tensor cores of an H200
read on under Triton 3.6: an illegal access where shared memory ends."""
VALUES_OF_CHAIN = 64
"""Columns of a state that a program takes through a chain."""
TAIL_BLOCK = 512
PROGRAMS = 16
"""Programs of each kernel on a multiprocessor, at most: they take chunks and chains in turns."""


class TritonRecurrence:
    """Computes the rows of `table`, which its owner sets: of a forward, in order, what `tables` makes."""

    def __init__(self, shape: RecurrentShape, pool: StatePool, norm_eps: float, multiprocessors: int) -> None:
        self._shape, self._pool, self._norm_eps = shape, pool, norm_eps
        self._most_programs = PROGRAMS * multiprocessors
        sizes = MOST_QUERIES, shape.value_heads, shape.key_dim, shape.value_dim
        self._own = torch.empty(sizes, dtype=torch.float32, device=pool.states.device)
        self._narrow = pool.tails.dtype != torch.float32
        # For float32 each product in three of TF32, which together keep 21 bits of mantissa.
        self._precision = "tf32" if self._narrow else "tf32x3"
        self.tables = ChunkTables(shape.taps)
        self.table: Tensor | None = None

    def plan_steps(self, slots: Tensor) -> None:
        """Prepare a step whose rows are sequences of one more token each: int64 [R], the slots of their states."""
        self.table = step_table(slots, self._shape.taps)

    def mix(self, layer: int, weights: RecurrentWeights, inputs: Tensor) -> Tensor:
        shape, table, pool = self._shape, self.table, self._pool
        assert table is not None
        rows, states, tails = len(inputs), pool.states[layer], pool.tails[layer]
        group = shape.value_heads // shape.key_heads
        fields = ROWS_OF_CHUNK + shape.taps - 1
        keys, values = (max(dot_size(dim), MIN_BLOCK) for dim in (shape.key_dim, shape.value_dim))
        mixed = inputs.new_empty((rows, shape.channels))
        heads = 2 * shape.key_heads + shape.value_heads
        convolve[(self._programs(rows * heads),)](
            inputs, weights.convolution, tails, table, mixed, NORM_OF_KEYS_EPS, shape.key_dim**-0.5,
            HEADER=HEADER, CHUNK_FIELDS=fields, CHUNK=CHUNK, ROWS=ROWS_OF_CONVOLUTION, TAPS=shape.taps,
            KEY_HEADS=shape.key_heads, VALUE_HEADS=shape.value_heads, KEYS=shape.key_dim, VALUES=shape.value_dim,
            WIDTH=shape.inputs, BLOCK=triton.next_power_of_2(max(shape.key_dim, shape.value_dim)), num_warps=4,
        )  # fmt: skip
        out = inputs.new_empty((rows, shape.value_heads, shape.value_dim))
        corrections = torch.empty_like(out)
        known = inputs.new_empty((rows, shape.value_heads, shape.key_dim))
        reads = inputs.new_empty((rows, shape.value_heads, CHUNK))
        kept = torch.empty((rows, shape.value_heads), dtype=torch.float32, device=inputs.device)
        chunk_systems[(self._programs(rows * shape.value_heads),)](
            mixed, inputs, weights.rates, weights.decay_bias, table, corrections, known, reads, kept,
            HEADER=HEADER, CHUNK_FIELDS=fields, CHUNK=CHUNK, KEY_HEADS=shape.key_heads, GROUP=group,
            KEYS=shape.key_dim, VALUES=shape.value_dim, WIDTH=shape.inputs, CHANNELS=shape.channels,
            KEY_BLOCK=keys, VALUE_BLOCK=values, LEVELS=CHUNK.bit_length() - 1, NARROW=self._narrow,
            PRECISION=self._precision, num_warps=4 if self._narrow else 8, num_stages=1,
        )  # fmt: skip
        block = min(values, VALUES_OF_CHAIN)
        chains = rows * shape.value_heads * -(-shape.value_dim // block)
        for items in (False, True):
            chain_states[(self._programs(chains),)](
                mixed, corrections, known, reads, kept, table, states, self._own, out,
                ITEMS=items, HEADER=HEADER, CHUNK_FIELDS=fields, CHAIN_FIELDS=CHAIN_FIELDS, CHUNK=CHUNK,
                KEY_HEADS=shape.key_heads, GROUP=group, KEYS=shape.key_dim, VALUES=shape.value_dim,
                CHANNELS=shape.channels, KEY_BLOCK=keys, VALUE_BLOCK=block, PRECISION=self._precision,
                num_warps=4 if self._narrow else 8, num_stages=2 if self._narrow and not items else 1,
            )  # fmt: skip
        keep_tails[(self._programs(rows),)](
            inputs, tails, table,
            HEADER=HEADER, CHUNK_FIELDS=fields, CHAIN_FIELDS=CHAIN_FIELDS, TAPS=shape.taps,
            TAPS_BLOCK=triton.next_power_of_2(max(shape.taps - 1, 1)), CHANNELS=shape.channels,
            WIDTH=shape.inputs, BLOCK=TAIL_BLOCK, num_warps=4,
        )  # fmt: skip
        gated_norm[(rows,)](
            out, inputs, weights.norm, table, self._norm_eps,
            HEADS=shape.value_heads, VALUES=shape.value_dim, CHANNELS=shape.channels, WIDTH=shape.inputs,
            HEAD_BLOCK=triton.next_power_of_2(shape.value_heads),
            BLOCK=triton.next_power_of_2(shape.value_dim), num_warps=8,
        )  # fmt: skip
        return out.flatten(1)

    def _programs(self, tasks: int) -> int:
        return min(tasks, self._most_programs)


def step_table(slots: Tensor, taps: int) -> Tensor:
    """Make a table of `ChunkTables` on the device: a row is a chunk and a chain, and changes its state in place.

    The shape depends on the number of rows alone, so that a graph may hold it.
    """
    count, before = len(slots), taps - 1
    row = torch.arange(count, device=slots.device)
    sources = -1 - (slots[:, None] * before + torch.arange(before, device=slots.device))
    chunks = torch.cat((torch.stack((row, row + 1, slots), 1), sources), 1)
    chains = torch.stack((row, row + 1, row, slots), 1)
    tails = torch.cat((slots[:, None], sources[:, 1:], row[:, None]), 1)
    header = torch.full((HEADER,), count, device=slots.device)
    header[2].fill_(0)
    return torch.cat((header, chunks.flatten(), chains.flatten(), tails.flatten())).int()
