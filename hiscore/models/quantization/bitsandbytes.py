"""`quant_method: bitsandbytes`: nf4 and fp4, with scales that may be quantised too, and LLM.int8."""

import json
from collections.abc import Mapping

import torch
from torch import Tensor

from hiscore.models.quantization.base import Format
from hiscore.models.quantization.unpacking import scale

STATE = "weight.quant_state.bitsandbytes__"
COMPANIONS = ("absmax", "quant_map", "nested_absmax", "nested_quant_map")
INT8_MAX = 127


class BitsAndBytes(Format):
    """Blocks of neighbours in the flattened weight share a scale; the upper half of a byte is the first code.

    Quantised scales are blocks of neighbours, too, with an offset. Codes stand for what the stored maps hold.
    Source: `QuantState.from_dict` and `dequantize_4bit` of bitsandbytes.functional; `Int8Params`.
    """

    method = "bitsandbytes"
    companions = dict.fromkeys(
        (*(f"weight.{part}" for part in COMPANIONS), f"{STATE}nf4", f"{STATE}fp4", "SCB", "weight_format"),
        "weight",
    )
    excluded_keys = ("llm_int8_skip_modules",)

    def split(self, stored: str) -> tuple[str, str]:
        module, of_weight, part = stored.partition(".weight.")
        return (module, f"weight.{part}") if of_weight else super().split(stored)

    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        if "SCB" in parts:
            if parts.get("weight_format", torch.tensor(0)).any():
                raise ValueError("its weight_format is not that of rows")
            return scale(parts["weight"], parts["SCB"] / INT8_MAX)
        state = next((part for name, part in parts.items() if name.startswith(STATE)), None)
        if state is None:
            raise KeyError(f"{STATE}nf4")
        about = json.loads(bytes(state.tolist()))
        scales = parts["weight.absmax"]
        if "nested_blocksize" in about:
            nested = parts["weight.nested_quant_map"][scales.int()]
            scales = _scale_blocks(nested, parts["weight.nested_absmax"], about["nested_blocksize"])
            scales = scales + about["nested_offset"]
        packed = parts["weight"].flatten()
        codes = torch.stack((packed >> 4, packed & 0xF), dim=-1).flatten()
        values = parts["weight.quant_map"][codes.int()]
        shape = torch.Size(about["shape"])
        return _scale_blocks(values[: shape.numel()], scales, about["blocksize"]).reshape(shape)


def _scale_blocks(values: Tensor, scales: Tensor, block: int) -> Tensor:
    each = scales.repeat_interleave(block)
    if not 0 <= len(each) - len(values) < block:
        raise ValueError(f"{len(scales)} scales of blocks of {block} do not fit {len(values)} values")
    return values * each[: len(values)]
