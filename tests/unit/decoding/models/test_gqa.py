"""Parts of prompts as one packed forward."""

import numpy as np

from hiscore.decoding.interface.worker import NO_PAGES, PrefillChunk
from hiscore.decoding.models.gqa import pack_chunks


def chunk(tokens: list[int], start: int, staging: list[int], is_last: bool) -> PrefillChunk:
    pages = np.array(staging, np.int32)
    return PrefillChunk(0, np.array(tokens, np.int32), start, pages, NO_PAGES, is_last)


def test_each_chunk_sees_its_prompts_earlier_tokens_and_itself() -> None:
    chunks = [chunk([5, 6], 15, [2, 4], False), chunk([7, 8, 9], 0, [1], True), chunk([3], 1, [0], True)]
    forward = pack_chunks(chunks)
    assert forward.input_ids.tolist() == [5, 6, 7, 8, 9, 3]
    assert forward.positions.tolist() == [15, 16, 0, 1, 2, 1]
    assert forward.cu_seqlens.tolist() == [0, 2, 5, 6]
    assert forward.slot_mapping.tolist() == [47, 64, 16, 17, 18, 1]
    assert [(group.first_row, group.last_row) for group in forward.groups] == [(0, 2), (2, 5), (5, 6)]
    assert [group.context_slots.tolist() for group in forward.groups] == [list(range(32, 47)), [], [0]]
    assert all(group.context_rows == slice(0, 0) for group in forward.groups)
    assert forward.scored_rows.tolist() == [4, 5]
    assert forward.scored_items.tolist() == [0, 1]
    assert [each.dtype.name for each in (forward.input_ids, forward.positions, forward.slot_mapping)] == [
        "int32",
        "int32",
        "int64",
    ]
