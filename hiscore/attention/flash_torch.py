"""Softmax attention of consecutive rows in PyTorch's flash kernel for the CPU, which keeps no logits.

The kernel knows keys that all rows see, and a causal triangle. So rows attend to their context and to themselves
separately. Each result comes with the logarithm of its sum of exponentials, by which two of them are joined into
what one softmax over all keys gives.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Attended:
    """Attention of some rows to some keys.

    Attributes:
        out: [segments, rows, heads, head_dim].
        log_sum: [segments, rows, heads]: the logarithm of the sum of exponentials of the logits.
    """

    out: Tensor
    log_sum: Tensor

    def of(self, rows: Tensor) -> "Attended":
        """Rows of the only segment, int64 [segments, rows], as segments."""
        return Attended(self.out[0, rows], self.log_sum[0, rows])

    def join(self, other: "Attended") -> "Attended":
        """The attention of the same rows to the keys of both."""
        share = torch.sigmoid(other.log_sum - self.log_sum)
        return Attended(
            torch.lerp(self.out, other.out, share[..., None]), torch.logaddexp(self.log_sum, other.log_sum)
        )

    def with_sinks(self, sinks: Tensor) -> Tensor:
        """The output with one more logit, [heads], in each row's softmax, without a value."""
        return self.out * torch.sigmoid(self.log_sum - sinks.to(self.log_sum.dtype))[..., None]


def flash_attention(q: Tensor, k: Tensor, v: Tensor, scale: float, causal: bool) -> Attended:
    """softmax(q k^T scale) v of each segment.

    Args:
        q: [segments, rows, heads, head_dim], float32 or float64.
        k, v: [segments, keys, kv_heads, head_dim].
        causal: Row i sees keys 0 to i; otherwise all.
    """
    segments, kv_heads = k.shape[0], k.shape[2]
    # The kernel's batch is the KV heads of all segments, its heads are those of each: views, for one segment.
    q = q.unflatten(2, (kv_heads, -1)).permute(0, 2, 3, 1, 4).flatten(0, 1)
    k, v = (x.transpose(1, 2).flatten(0, 1)[:, None].expand(-1, q.shape[1], -1, -1) for x in (k, v))
    # The only one of PyTorch's operators that returns the sums.
    out, log_sum = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, scale=scale
    )
    return Attended(
        out.unflatten(0, (segments, -1)).permute(0, 3, 1, 2, 4).flatten(2, 3),
        log_sum.unflatten(0, (segments, -1)).permute(0, 3, 1, 2).flatten(2),
    )
