"""Where a step's new tokens go, in one launch: in plain torch it is some twenty small ones."""

import triton
import triton.language as tl


@triton.jit
def newest_slots(
    slots, positions, host_block_table, device_block_table, direct, host_slots, buffer_slots,
    rows, lru_pages, ring_pages, table_stride,
    PAGE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """slots, positions -> host_slots, buffer_slots: int32 [rows] each, -1 for padding.

    Tables are those of `KVCache`. A grid of blocks of rows.
    """
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < rows
    slot = tl.load(slots + row, mask=inside, other=-1)
    valid = slot >= 0
    position = tl.load(positions + row, mask=valid, other=0)
    page, offset = position // PAGE, position % PAGE
    table = slot.to(tl.int64) * table_stride
    home = tl.load(host_block_table + table + page, mask=valid, other=0) * PAGE + offset
    whole = tl.load(direct + slot, mask=valid, other=0)
    place = tl.where(whole, page, lru_pages + page % ring_pages)
    buffer = tl.load(device_block_table + table + place, mask=valid, other=0) * PAGE + offset
    tl.store(host_slots + row, tl.where(valid, home, -1), mask=inside)
    tl.store(buffer_slots + row, tl.where(valid, buffer, -1), mask=inside)
