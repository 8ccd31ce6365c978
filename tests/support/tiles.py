"""Forwards whose tiles a device has made, for tests of packed attention."""

from dataclasses import replace

import numpy as np
import torch

from hiscore.arrays import Int32
from hiscore.attention.metadata import Forward
from hiscore.attention.packed_triton import TileInputs, TileTables, TritonAttention
from hiscore.attention.tile_inputs import window_slots
from hiscore.prefill.input_layout import NO_ROWS, InputLayout
from tests.support.layers import DEVICE


def prepare(
    attention: TritonAttention, forward: Forward, rows: int | None = None, scored: Int32 = NO_ROWS
) -> TileInputs:
    """Give `attention` the inputs of a forward, padded to so many rows, and cut it into tiles."""
    rows = rows or len(forward.input_ids)
    buffer, slots = InputLayout(rows).pack(forward, attention.rows_per_tile, scored)
    device = torch.device(DEVICE)
    # No row of any forward: what is read without having been written shows.
    tables = TileTables(rows, attention.rows_per_tile, device)
    for table in vars(tables).values():
        table.fill_(2**30)
    *_, inputs = InputLayout(rows).views(
        torch.from_numpy(buffer).to(device),
        torch.from_numpy(np.append(slots, 0).astype(np.int32)).to(device),
        tables,
    )
    of_windows = torch.from_numpy(np.append(window_slots(forward), 0).astype(np.int32))
    attention.inputs = replace(inputs, window_slots=of_windows.to(device))
    attention.cut_into_tiles()
    return attention.inputs


def squeeze_columns(inputs: TileInputs, tiles: int) -> None:
    """Put the keys of a tile's segments behind one another, where slots should be."""
    tables = inputs.tables
    for tile in range(tiles):
        begin, end = tables.tiles[tile, -2:].tolist()
        keys = tables.columns[begin:end]
        keys = keys[keys >= 0]
        tables.columns[begin : begin + len(keys)] = keys
        tables.tiles[tile, -1] = begin + len(keys)
