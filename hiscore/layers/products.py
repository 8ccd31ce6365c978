"""The product of activations with a weight, by the fastest library that the device has for it."""

import os
from functools import cache

import torch
from torch import Tensor

# Generated code is kept for each number of rows that a product has had, up to 1 MB for each, and by default 1,024
# times, by oneDNN and by PyTorch. Read at the first product.
for name in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
    os.environ.setdefault(name, "64")

ONEDNN_DTYPES = (torch.float32, torch.bfloat16)


@cache
def onednn_has_bfloat16() -> bool:
    """True if oneDNN multiplies in bfloat16 here: it needs AVX-512, or an ARM processor's own instructions."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x weight^T + bias: x [..., in], weight [out, in].

    On a CPU that is oneDNN's product. PyTorch's own takes that for bfloat16, but MKL's for float32, which computes
    as for AVX2 on processors of other makers: half as fast on an EPYC 9005.
    """
    if x.device.type == "cpu" and x.dtype in ONEDNN_DTYPES and torch.backends.mkldnn.is_available():
        if x.dtype == torch.bfloat16 and not onednn_has_bfloat16():
            # Sums are float32 either way.
            widened = linear(x.float(), weight.float(), None if bias is None else bias.float())
            return widened.to(torch.bfloat16)
        # For a weight with gaps between its rows oneDNN has only its reference, a thousand times slower.
        weight = weight.contiguous()
        product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
        return product
    return torch.nn.functional.linear(x, weight, bias)
