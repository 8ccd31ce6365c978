"""`quant_method: compressed-tensors`: of llm-compressor, in float 8, int 8, NVFP4, and packed int 4 or 8."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hiscore.layers.fp8 import FP8
from hiscore.models.quantization.base import KV_CACHE_SCALES, Format
from hiscore.models.quantization.fp8 import fp8_scales
from hiscore.models.quantization.unpacking import nvfp4, of_dtype, scale, scales_of_rows, unpack

PARTS = ("packed", "scale", "global_scale", "zero_point", "shape", "g_idx")
COMPANIONS = (
    *(f"weight_{part}" for part in PARTS),
    *("input_scale", "input_global_scale", "input_zero_point", "output_scale", "output_zero_point"),
)


class CompressedTensors(Format):
    """Several groups of modules, each with its own scheme.

    Source: compressed_tensors.compressors (naive_quantized, pack_quantized, nvfp4), and `match_name` of its utils.
    """

    method = "compressed-tensors"
    companions = dict.fromkeys(COMPANIONS, "weight")
    dropped = KV_CACHE_SCALES
    excluded_keys = ("ignore",)

    def __init__(self, quantised: Mapping[str, Any]) -> None:
        super().__init__(quantised)
        self._groups = list((quantised.get("config_groups") or {}).values())

    def is_excluded(self, module: str) -> bool:
        return any(_matches(pattern, module) for pattern in self.excluded)

    def in_fp8(self, module: str, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int] | None:
        if "weight_packed" in parts or self._scheme(module)["type"] != "float":
            return None
        weight = of_dtype(parts["weight"], FP8)
        return weight, *scales_of_rows(fp8_scales(parts), weight.shape, self._block(module))

    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        weights = self._scheme(module)
        if "weight_packed" in parts:
            if weights["type"] == "float":
                scales = parts["weight_scale"].float() / parts["weight_global_scale"]
                return nvfp4(parts["weight_packed"], scales)
            return _unpack(parts, int(weights["num_bits"]))
        values = of_dtype(parts["weight"], FP8 if weights["type"] == "float" else torch.int8)
        zeros = parts.get("weight_zero_point")
        return scale(values, fp8_scales(parts), zeros, self._block(module))

    def _block(self, module: str) -> tuple[int, int] | None:
        block = self._scheme(module).get("block_structure")
        return (int(block[0]), int(block[1])) if block else None

    def _scheme(self, module: str) -> Mapping[str, Any]:
        """A module's scheme: that of the group which names it, else of the group of all linear layers."""
        for matches in (_matches, lambda target, _: target == "Linear"):
            for group in self._groups:
                if any(matches(target, module) for target in group.get("targets", ())):
                    weights: Mapping[str, Any] = group["weights"]
                    return weights
        raise ValueError("no group of the config has it as a target")


def _matches(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    return pattern == module


def _unpack(parts: Mapping[str, Tensor], bits: int) -> Tensor:
    """Weights packed along the inputs, zero points along the outputs; both signed, with 2^(bits - 1) added.

    The one zero point of a whole tensor is not packed.
    """
    rows, columns = parts["weight_shape"].tolist()
    middle = 2 ** (bits - 1)
    values = unpack(parts["weight_packed"], bits)[:, :columns] - middle
    scales, zeros = parts["weight_scale"], None
    if (stored := parts.get("weight_zero_point")) is not None:
        packed = stored.dtype == torch.int32 and stored.ndim == 2
        zeros = (unpack(stored.t(), bits)[:, :rows] - middle).t() if packed else stored
    if (of_group := parts.get("weight_g_idx")) is not None and (of_group >= 0).all():
        # Columns of a group are not neighbours: each column gets its own scale.
        columns_of = of_group.long()
        scales, zeros = scales[:, columns_of], None if zeros is None else zeros[:, columns_of]
    return scale(values, scales, zeros)
