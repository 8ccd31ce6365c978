"""Slots of a decode step's new tokens, in one launch: PyTorch takes some twenty small ones."""

import triton
import triton.language as tl


@triton.jit
def map_slots(
    seq_indices, positions, host_block_table, device_block_table, fully_resident, host_slots, buffer_slots,
    rows, lru_pages, ring_pages, table_stride,
    PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Map each new token to its slot in host pages and in the device buffer. Grid: (blocks of BLOCK rows).

    In: fully_resident bool [max_sequences]. Out: host_slots, buffer_slots int32 [rows], -1 for padding.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    seq_index = tl.load(seq_indices + row, mask=inside, other=-1)
    valid = seq_index >= 0
    position = tl.load(positions + row, mask=valid, other=0)
    page, offset = position // PAGE, position % PAGE
    table = seq_index.to(tl.int64) * table_stride
    host_slot = tl.load(host_block_table + table + page, mask=valid, other=0) * PAGE + offset
    resident = tl.load(fully_resident + seq_index, mask=valid, other=0)
    entry = tl.where(resident, page, lru_pages + page % ring_pages)
    buffer_slot = tl.load(device_block_table + table + entry, mask=valid, other=0) * PAGE + offset
    tl.store(host_slots + row, tl.where(valid, host_slot, -1), mask=inside)
    tl.store(buffer_slots + row, tl.where(valid, buffer_slot, -1), mask=inside)
