"""Launch the kernels that draw tokens; `hiscore.decoding.worker.sampler.sample` is the same in PyTorch."""

from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.kernels import sample_candidates as candidates
from hiscore.kernels.gemv import pdl_launch_kwargs
from hiscore.kernels.penalties import penalise_and_find_maxima
from hiscore.kernels.sample_draw import draw_tokens
from hiscore.layers import triton_ops

BLOCK, HALF_BLOCK_MAX_ROWS = 2_048, 8
"""Tokens of a split; half as many up to so many rows, so that these use the whole device."""
LISTED = 1_024
"""Candidates that are sorted; rows with more are searched by one program each."""
SHORT = 256
"""Up to so many candidates are sorted without the rest of the list: few rows with top-k or top-p have more."""
PARTS = 512
"""Parts of the range in which the last token that filters keep may lie, where the list is too short for it."""


@dataclass(frozen=True)
class Feeding:
    """Tensors that a draw writes for the next step, and a cache whose counters are read.

    The tensors are `StepOutputs.readback`, `StepRunner.input_ids` and `TokenCounts.table`.
    """

    readback: Tensor
    input_ids: Tensor
    counts: Tensor
    cache: KVCache


def draw(
    logits: Tensor,
    options: Tensor,
    feeding: Feeding | None = None,
    block: int | None = None,
    listed: int = LISTED,
) -> Tensor:
    """Sample one token id per row, int64 [R], as `sampler.sample`; with a feeding, return its readback.

    Args:
        logits: float32 [R, V]; penalties change them in place.
        options: float64 [10, R], see `sampling_options`.
        feeding: Gets the tokens; without it no row has penalties.
        block: Tokens of a split, a power of two; so is `listed`, the candidates that are sorted.
    """
    rows, vocabulary = logits.shape
    block = block or (BLOCK // 2 if rows <= HALF_BLOCK_MAX_ROWS else BLOCK)
    splits = triton.cdiv(vocabulary, block)
    maxima = logits.new_empty((rows, splits))
    shapes = ((rows, splits), (rows, candidates.BINS), (2, rows))
    best, bins, found = (logits.new_empty(shape, dtype=torch.int32) for shape in shapes)
    ranges = logits.new_empty((candidates.RANGES, rows), dtype=torch.float64)
    long = torch.int64
    sums = logits.new_empty((2, rows, splits), dtype=long)
    masses, base = (logits.new_empty(size, dtype=long) for size in ((rows, PARTS), rows))
    places = logits.new_empty((rows, listed), dtype=long)
    out = feeding.readback if feeding else logits.new_empty(rows, dtype=long)
    table = feeding.counts if feeding else best
    input_ids = feeding.input_ids if feeding else best
    counters = (
        (feeding.cache.hits, feeding.cache.misses, feeding.cache.mass.view(long)) if feeding else (out,) * 3
    )
    sizes = (vocabulary, logits.stride(0))
    chained = triton_ops.supports_pdl()
    launch = pdl_launch_kwargs(chained) | {"BLOCK": block}
    spread = triton.next_power_of_2(splits)
    # The first waits for whatever is before it, which may be no kernel.
    penalise_and_find_maxima[(splits, rows)](
        logits, options, table, maxima, best, bins, *sizes,
        BLOCK=block, BINS=candidates.BINS, CHAINED=chained, enable_fp_fusion=False,
    )  # fmt: skip
    candidates.count_weights[(splits, rows)](
        logits, options, maxima, sums, bins, *sizes, SPLITS=spread, **launch
    )
    candidates.find_range[(rows,)](
        options, maxima, sums, bins, ranges, base, found, masses, vocabulary, splits,
        SPLITS=spread, LISTED=listed, PARTS=PARTS, **pdl_launch_kwargs(chained),
    )  # fmt: skip
    candidates.narrow_range[(splits, rows)](
        logits, options, ranges, base, found, masses, *sizes, PARTS=PARTS, **launch
    )
    candidates.list_candidates[(splits, rows)](
        logits, options, maxima, sums, ranges, found, places, *sizes, LISTED=listed, **launch
    )
    draw_tokens[(rows,)](
        logits, options, maxima, best, sums, base, found, places, out, input_ids, table, *counters, *sizes, splits,
        SPLITS=spread, LISTED=listed, SHORT=min(SHORT, listed),
        FEEDS=feeding is not None, num_warps=8, **launch,
    )  # fmt: skip
    return out
