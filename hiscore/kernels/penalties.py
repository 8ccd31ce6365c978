"""Penalties on tokens that a sequence has had, and the count of a new one; `TokenCounts` has the table."""

import triton
import triton.language as tl

# `token_counts.IN_PROMPT`: a bit above all counts.
_COUNTS = tl.constexpr((1 << 30) - 1)


@triton.jit
def penalise_rows(
    logits, table, counted, repetition, presence, frequency, vocabulary, stride, BLOCK: tl.constexpr
):  # fmt: skip
    """Change the logits of rows with penalties, in place. Grid: (R, splits).

    Each operation is rounded by itself, as in PyTorch: launch it without fused ones.

    Args:
        logits: float32 [R, stride].
        table: int32 [max_sequences, vocabulary].
        counted: int32 [R]: rows of the table; -1: no penalties.
        repetition, presence, frequency: float32 [R].
    """
    row, split = tl.program_id(0), tl.program_id(1)
    place = tl.load(counted + row)
    if place < 0:
        return
    at = split * BLOCK + tl.arange(0, BLOCK)
    inside = at < vocabulary
    counts = tl.load(table + place.to(tl.int64) * vocabulary + at, mask=inside, other=0)
    own = tl.load(logits + row.to(tl.int64) * stride + at, mask=inside, other=0.0)
    by = tl.zeros([BLOCK], tl.float32) + tl.load(repetition + row)
    own = tl.where(counts > 0, tl.where(own > 0, tl.div_rn(own, by), own * by), own)
    output = counts & _COUNTS
    own = own - tl.load(frequency + row) * output.to(tl.float32)
    own = own - tl.load(presence + row) * (output > 0).to(tl.float32)
    tl.store(logits + row.to(tl.int64) * stride + at, own, mask=inside)


@triton.jit
def count_tokens(table, counted, ids, vocabulary):
    """Count the token of each row with penalties. Grid: (R,).

    Args:
        table: int32 [max_sequences, vocabulary].
        counted: int32 [R]: rows of the table, none twice; -1: no penalties.
        ids: int64 [R].
    """
    row = tl.program_id(0)
    place = tl.load(counted + row)
    if place < 0:
        return
    entry = table + place.to(tl.int64) * vocabulary + tl.load(ids + row)
    tl.store(entry, tl.load(entry) + 1)
