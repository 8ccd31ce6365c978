"""Launch the kernels of penalties; `hiscore.decoding.worker.token_counts` is the same in PyTorch."""

import triton
from torch import Tensor

from hiscore.kernels.penalties import count_tokens, penalise_rows

BLOCK = 4_096


def penalise(
    logits: Tensor, table: Tensor, counted: Tensor, repetition: Tensor, presence: Tensor, frequency: Tensor
) -> None:
    """Change the logits of rows with penalties, in place.

    Args:
        logits: float32 [R, V].
        table: int32 [max_sequences, V], see `TokenCounts`.
        counted: int32 [R]: rows of the table; -1: no penalties.
        repetition: float32 [R].
        presence: float32 [R].
        frequency: float32 [R].
    """
    rows, vocabulary = logits.shape
    penalise_rows[(rows, triton.cdiv(vocabulary, BLOCK))](
        logits, table, counted, repetition, presence, frequency, vocabulary, logits.stride(0),
        BLOCK=BLOCK, enable_fp_fusion=False,
    )  # fmt: skip


def count(table: Tensor, counted: Tensor, ids: Tensor) -> None:
    """Count sampled tokens.

    Args:
        table: int32 [max_sequences, V].
        counted: int32 [R]: rows of the table; -1: none.
        ids: int64 [R].
    """
    count_tokens[(len(ids),)](table, counted, ids, table.shape[1])
