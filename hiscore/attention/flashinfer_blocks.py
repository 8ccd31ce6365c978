"""FlashInfer's FlashAttention 3 over pages in blocks of 128 keys, the size that it uses over contiguous rows.

Over pages the library adds up 96 keys of heads of 128 at once. With the blocks that it has over rows, a prompt has
the same bits by both, and forwards of one whole prompt need no pages (`flashinfer_rows`). The size of a block is a
constant of the type that says what attention computes: a type of our own has another value (`jit_args`).
"""

import torch

HEAD_DIM = 128
"""Width of heads with blocks of our own; others keep the library's."""

NAME = "WideBlocks"
DECLARATION = """
#include <flashinfer/attention/hopper/kernel_traits.cuh>
#include <flashinfer/attention/hopper/variants.cuh>

namespace flashinfer {

struct WideBlocks : StandardAttention {
  using StandardAttention::StandardAttention;
};

// By their order: no TMA for keys, both head sizes, rows and keys of a block, stages.
template <typename Q, typename KV, typename O, typename Id>
struct AttentionKernelTraits<false, 128, 128, 128, 96, 2, Q, KV, O, Id, WideBlocks>
    : AttentionKernelTraits<false, 128, 128, 128, 128, 2, Q, KV, O, Id, WideBlocks> {};

}  // namespace flashinfer
"""


def jit_args(dtype: torch.dtype) -> list[object]:
    """Arguments with which FlashInfer's wrapper compiles for a dtype of 16 bits; `run` then takes the scale last.

    Source: flashinfer.jit.gen_customize_batch_prefill_module
    """
    name = str(dtype).removeprefix("torch.")
    tensors: list[str] = []
    return [
        f"hiscore_wide_blocks_{name}", dtype, dtype, dtype, torch.int32, HEAD_DIM, HEAD_DIM,
        tensors, tensors, ["sm_scale"], ["double"], NAME, DECLARATION,
    ]  # fmt: skip
