"""`quant_method: mxfp4`: the experts of GPT-OSS, blocks of 32 e2m1 numbers with a power of two for each."""

from collections.abc import Mapping

import torch
from torch import Tensor

from hiscore.models.quantization.base import Format
from hiscore.models.quantization.unpacking import unpack_e2m1

BIAS = 127
COMPANIONS = {
    f"{name}_{part}": name for name in ("gate_up_proj", "down_proj") for part in ("blocks", "scales")
}


class Mxfp4(Format):
    """All experts of a layer are one tensor.

    Stored are blocks, uint8 [experts, out, in / 32, 16], the lower half of a byte first, and scales,
    uint8 [experts, out, in / 32], exponents plus 127. The weight is [experts, in, out], as an unquantised
    checkpoint of GPT-OSS stores it.
    Source: `convert_moe_packed_tensors` of transformers.integrations.mxfp4.
    """

    method = "mxfp4"
    companions = COMPANIONS
    parts_have_rows = True

    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        by_kind = {name.rpartition("_")[2]: part for name, part in parts.items()}
        blocks, scales = by_kind["blocks"], by_kind["scales"]
        if blocks.shape != (*scales.shape, 16) or blocks.dtype != torch.uint8:
            raise ValueError(
                f"blocks {list(blocks.shape)} and scales {list(scales.shape)} do not fit together"
            )
        experts, outs = blocks.shape[:2]
        weight = torch.empty(
            (experts, outs, blocks[0, 0].numel() * 2), dtype=torch.bfloat16, device=blocks.device
        )
        # Expert by expert: the codes take eight times the memory of the bytes that hold them.
        for expert, block, exponents in zip(weight, blocks, scales, strict=True):
            # A code times a power of two is a bfloat16, if the exponent is.
            values = unpack_e2m1(block, torch.bfloat16)
            expert.copy_(torch.ldexp(values, exponents[..., None].int() - BIAS).flatten(1))
        return weight.transpose(1, 2)
