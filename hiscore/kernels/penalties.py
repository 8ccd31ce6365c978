"""The first kernel of a draw: penalties on tokens that a sequence has had, and the largest logit of each split."""

import triton
import triton.language as tl

from hiscore.kernels.fixed_point import load_split
from hiscore.kernels.gemv import launch_dependents, wait_for_predecessors
from hiscore.kernels.sampling_options import COUNTED, FREQUENCY, PRESENCE, REPETITION, option

# `token_counts.IN_PROMPT`: a bit above all counts.
_COUNTS = tl.constexpr((1 << 30) - 1)


@triton.jit
def penalise_and_find_maxima(
    logits, row_options, table, maxima, best, bins, vocabulary, stride,
    BLOCK: tl.constexpr, BINS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Change the logits of rows with penalties, in place, and find the largest of each split. Grid: (splits, R).

    Each operation is rounded by itself, as in PyTorch: launch it without fused ones.

    In: table int32 [max_sequences, vocabulary], see `TokenCounts`. In place: logits float32 [R, stride].
    Out: maxima float32 [R, splits], infinity if one is NaN; best int32 [R, splits], the lowest id of the largest;
    bins int32 [R, BINS], 0 for the kernels that follow.
    """
    launch_dependents(CHAINED)
    wait_for_predecessors(CHAINED)
    split, row, splits, rows = tl.program_id(0), tl.program_id(1), tl.num_programs(0), tl.num_programs(1)
    row_logits = logits + row.to(tl.int64) * stride
    place = option(row_options, rows, row, COUNTED).to(tl.int64)
    at, own = load_split(row_logits, split, vocabulary, BLOCK)
    if place >= 0:
        counts = tl.load(table + place * vocabulary + at, mask=at < vocabulary, other=0)
        by = tl.zeros([BLOCK], tl.float32) + option(row_options, rows, row, REPETITION).to(tl.float32)
        own = tl.where(counts > 0, tl.where(own > 0, tl.div_rn(own, by), own * by), own)
        output = counts & _COUNTS
        own = own - option(row_options, rows, row, FREQUENCY).to(tl.float32) * output.to(tl.float32)
        own = own - option(row_options, rows, row, PRESENCE).to(tl.float32) * (output > 0).to(tl.float32)
        tl.store(row_logits + at, own, mask=at < vocabulary)
    largest = tl.max(own, axis=0)
    broken = tl.sum((own != own).to(tl.int32), axis=0) > 0
    to = row * splits + split
    tl.store(maxima + to, tl.where(broken, float("inf"), largest))
    tl.store(best + to, tl.min(tl.where(own == largest, at, vocabulary - 1), axis=0))
    if split == 0:
        tl.store(bins + row * BINS + tl.arange(0, BINS), tl.zeros([BINS], tl.int32))
