"""A step's rows: which are padding, and which row of a table each may read."""

import torch

from hiscore.decoding.kv_cache.step_batch import StepBatch


def test_padding_reads_the_first_row_of_a_table_and_is_not_valid() -> None:
    batch = StepBatch(torch.tensor([2, -1, 0], dtype=torch.int32), torch.tensor([9, 0, 4], dtype=torch.int32))
    assert batch.valid.tolist() == [True, False, True]
    assert batch.table_rows.tolist() == [2, 0, 0]
    assert batch.table_rows.dtype == torch.int64
