"""What a CUDA forward is captured for, and how its inputs are laid out."""

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.attention.metadata import NO_SLOT, Forward, SegmentGroup
from hiscore.attention.packed_triton import TileTables
from hiscore.attention.tile_inputs import ALL_SCORED, GROUP_FIELDS, HEADER
from hiscore.prefill.input_layout import MAX_TAIL_ROWS, InputLayout, pad_scored
from hiscore.prefill.row_counts import (
    MIN_ROWS,
    SHORT_ROWS,
    SLICE_ROWS,
    START_ROWS,
    capture_sizes,
    output_rows,
    slices_of,
)


def test_graphs_fit_every_number_of_rows_with_little_padding() -> None:
    sizes = capture_sizes(16_384)
    assert sizes == sorted(set(sizes))
    for rows in range(MIN_ROWS, 16_385):
        bucket = next(b for b in sizes if b >= rows)
        assert bucket - rows < max(64, 0.125 * rows)
    assert capture_sizes(100)[-1] >= 100


@pytest.mark.parametrize("layers", [1, 2, 28, 36, 80])
def test_slices_are_of_equal_length_and_none_is_longer_than_another_forward(layers: int) -> None:
    """All layers, in order; few rows are launched at once."""
    for rows in capture_sizes(16_384):
        spans = slices_of(rows, layers)
        assert [layer for span in spans for layer in span] == [*range(layers)]
        lengths = {len(span) for span in spans}
        assert max(lengths) - min(lengths) <= 1
        assert len(spans) == 1 or rows > SHORT_ROWS
        # To the nearest layer, with the start of the forward.
        assert (rows + START_ROWS) * (max(lengths) - 1) < SLICE_ROWS * layers
    assert [len(slices_of(rows, 28)) for rows in (1_152, 1_280, 2_048, 4_096, 8_192, 16_384)] == [
        1,
        1,
        2,
        2,
        4,
        8,
    ]
    assert len(slices_of(16_384, 2)) == 2


def test_a_forward_between_slices_has_rows_of_its_own() -> None:
    assert SHORT_ROWS in capture_sizes(16_384)
    assert output_rows(16_384, in_slices=True) == 16_384 + SHORT_ROWS
    assert output_rows(16_384, in_slices=False) == 16_384
    assert output_rows(SHORT_ROWS, in_slices=True) == SHORT_ROWS


def test_few_scored_rows_are_padded_and_none_cost_nothing() -> None:
    assert pad_scored(np.array([], np.int64)).tolist() == []
    assert pad_scored(np.array([5, 9])).tolist() == [5, 9] + [0] * (MIN_ROWS - 2)
    assert pad_scored(np.arange(129)).tolist() == [*range(129), *[0] * 63]


def test_a_forward_is_laid_out_with_padding_that_belongs_to_nothing() -> None:
    """Five tokens, three of them after two cached ones, in a layout for eight rows."""
    forward = Forward(
        input_ids=np.array([11, 12, 13, 14, 15], np.int32),
        positions=np.array([0, 1, 2, 3, 4], np.int32),
        cu_seqlens=np.array([0, 2, 5], np.int32),
        groups=(
            SegmentGroup(0, 2, np.empty(0, np.int64), slice(0, 0)),
            SegmentGroup(2, 5, np.array([40, 41]), slice(0, 2)),
        ),
        slot_mapping=np.array([7, NO_SLOT, 9, NO_SLOT, 3], np.int64),
        scored_rows=np.array([4], np.int64),
        scored_items=np.array([0], np.int64),
        angles=np.array([0, 1, 2, 103, 104], np.int32),
    )
    layout = InputLayout(rows=8)
    buffer, slots = layout.pack(forward, rows_per_tile=2)
    assert slots.tolist() == [40, 41]
    assert len(buffer) == 4 * 8 + HEADER + 2 * GROUP_FIELDS + 3 <= layout.size - MAX_TAIL_ROWS
    tables = TileTables(8, 2, torch.device("cpu"))
    ids, positions, angles, slot_mapping, inputs = layout.views(
        torch.from_numpy(buffer), torch.from_numpy(slots), tables
    )
    assert ids.tolist() == [11, 12, 13, 14, 15, 0, 0, 0]
    assert angles.tolist() == [0, 1, 2, 103, 104, 0, 0, 0]
    assert positions.tolist() == inputs.positions.tolist() == [0, 1, 2, 3, 4, 0, 0, 0]
    assert slot_mapping.tolist() == [7, NO_SLOT, 9, NO_SLOT, 3, NO_SLOT, NO_SLOT, NO_SLOT]
    assert inputs.tables is tables
    groups = [[0, 0, 2, 0, 0, 0, 0, 0], [1, 2, 5, 0, 2, 0, 2, 0]]
    # Three tiles, two groups, two segments, and a row to read that is not listed.
    described = [3, 2, 2, ALL_SCORED, *groups[0], *groups[1], 0, 2, 5]
    assert inputs.described.tolist() == described
    # Rows to read come behind all that.
    read = np.array([4, 0], np.int32)
    described[3] = 2
    assert layout.pack(forward, 2, read)[0].tolist() == [*buffer[: 4 * 8].tolist(), *described, 4, 0]
    # Where none is read, none is listed, either.
    unread = forward._replace(scored_rows=np.empty(0, np.int64))
    assert layout.pack(unread, 2)[0][4 * 8 + 3] == 0
    buffer[5:8] = forward.input_ids[0]
    assert layout.pack_rows(forward, read).tolist() == [*buffer[: 4 * 8].tolist(), 4, 0]
