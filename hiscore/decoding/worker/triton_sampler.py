"""Launch the kernels that draw tokens; `hiscore.decoding.worker.sampler.sample` is the same in PyTorch."""

import torch
import triton
from torch import Tensor

from hiscore.kernels import sample_candidates as candidates
from hiscore.kernels.sample_draw import draw_tokens

BLOCK = 4_096
STEP = 2_048
BINS = 64
WARPS = 8


def sample_rows(
    logits: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    uniforms: Tensor,
    min_p: Tensor,
    block: int = BLOCK,
    step: int = STEP,
) -> Tensor:
    """Sample one token id per row, as `sampler.sample`; no host wait, and what it allocates is bounded.

    Args:
        logits: float32 [R, V].
        temperature: float32 [R].
        top_k: int32 [R].
        top_p: float32 [R].
        uniforms: float64 [R].
        min_p: float32 [R].
        block: Tokens of a split, a power of two.
        step: Candidates that one program looks at together, a power of two.

    Returns:
        int64 [R].
    """
    rows, vocabulary = logits.shape
    splits = triton.cdiv(vocabulary, block)
    constants = {"BLOCK": block, "SPLITS": triton.next_power_of_2(splits), "num_warps": WARPS}
    sizes = (vocabulary, logits.stride(0))
    maxima = logits.new_empty((rows, splits))
    sums = logits.new_empty((rows, splits), dtype=torch.int64)
    counts = logits.new_empty((rows, splits, BINS), dtype=torch.int32)
    found = logits.new_empty((rows, splits), dtype=torch.int32)
    keys = logits.new_empty((rows, vocabulary), dtype=torch.uint32)
    ids = logits.new_empty((rows, vocabulary), dtype=torch.int32)
    out = logits.new_empty(rows, dtype=torch.int64)
    options = (temperature, top_k, top_p, min_p)
    candidates.row_maxima[(rows, splits)](logits, maxima, *sizes, BLOCK=block, num_warps=WARPS)
    candidates.count_weights[(rows, splits)](
        logits, maxima, temperature, min_p, sums, counts, *sizes, **constants
    )
    candidates.collect_candidates[(rows, splits)](
        logits, maxima, *options, sums, counts, keys, ids, found, *sizes, **constants
    )
    draw_tokens[(rows,)](
        logits,
        maxima,
        *options,
        uniforms,
        sums,
        keys,
        ids,
        found,
        out,
        *sizes,
        splits,
        **constants,
        STEP=step,
    )
    return out
