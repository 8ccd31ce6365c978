"""Attention by FlashInfer over a forward's own rows: of one whole prompt they hold all keys and values.

There is nothing to look up, so whole blocks of keys are copied at once (TMA), which takes a seventh less time than
pages do. The bits are the same with blocks of the same size (`flashinfer_blocks`).
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hiscore.attention import flashinfer_blocks
from hiscore.attention.base import AttentionShape
from hiscore.attention.metadata import Forward

MIN_ROWS = 2_048
"""Rows below which attention takes too little of a forward for graphs of its own."""


class FlashInferRows:
    """`Attention` over the prompt that was planned last, in 16 bits.

    Args:
        workspace: uint8 on the GPU, which may be shared.
        max_rows: Rows of a forward, with its padding.
    """

    def __init__(self, shape: AttentionShape, dtype: torch.dtype, workspace: Tensor, max_rows: int) -> None:
        from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

        self._shape, self._dtype, self._device = shape, dtype, workspace.device
        edges = [torch.zeros(3, dtype=torch.int32, device=self._device) for _ in range(2)]
        self._kernels: Any = BatchPrefillWithRaggedKVCacheWrapper(
            workspace,
            "NHD",
            use_cuda_graph=True,
            qo_indptr_buf=edges[0],
            kv_indptr_buf=edges[1],
            backend="fa3",
            jit_args=flashinfer_blocks.jit_args(dtype),
        )
        self._uploaded = torch.cuda.Event()
        self.plan(max_rows, max_rows)  # the first plan says how large forwards may become

    def plan(self, tokens: int, rows: int) -> None:
        """Set what `attend`, captured or not, attends to from now on, on the current stream.

        The prompt's tokens are the first rows, and padding attends to itself. The prompt's last rows multiply the
        padding's values by zero, so these must be finite if the prompt is: padding repeats the first token.
        """
        self._uploaded.synchronize()  # as in `FlashInferAttention`
        edges = torch.from_numpy(np.array([0, tokens, rows], np.int32))
        self._kernels.plan(edges, edges, **of_model(self._shape, self._dtype))
        self._uploaded.record(torch.cuda.current_stream(self._device))

    def attend(self, layer: int, qkv: Tensor, pool: Tensor) -> Tensor:
        shape = self._shape
        heads = qkv.view(len(qkv), -1, shape.head_dim)
        q, k, v = heads.split([shape.heads, shape.kv_heads, shape.kv_heads], dim=1)
        out = torch.empty((len(qkv), shape.heads, shape.head_dim), dtype=qkv.dtype, device=qkv.device)
        self._kernels.run(q, k, v, shape.scale, out=out, enable_pdl=False)
        return out.flatten(1)


def of_model(shape: AttentionShape, dtype: torch.dtype) -> dict[str, Any]:
    """Arguments that plans over pages and over rows share, so that their bits are the same."""
    return {
        "num_qo_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim_qk": shape.head_dim,
        "causal": True,
        "sm_scale": shape.scale,
        "q_data_type": dtype,
        "kv_data_type": dtype,
    }


def is_whole(forward: Forward) -> bool:
    """True if a forward is one prompt from its beginning."""
    return len(forward.cu_seqlens) == 2 and not len(forward.groups[0].context_slots)
