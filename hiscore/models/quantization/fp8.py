"""fp8 and modelopt: e4m3 weights with a scale for the tensor, for each channel, or for each block; NVFP4."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor

from hiscore.layers.fp8 import FP8
from hiscore.models.quantization.base import KV_CACHE_SCALES, Format
from hiscore.models.quantization.schemes import modelopt_algorithms
from hiscore.models.quantization.unpacking import nvfp4, of_dtype, scale, scales_of_rows


class Fp8(Format):
    """Weights in fp8 of Qwen3-FP8 and DeepSeek (weight_scale_inv) and of AutoFP8 (weight_scale, input_scale).

    `weight_scale_inv` multiplies, in spite of its name.
    Source: `Fp8Dequantize` of transformers.integrations.finegrained_fp8; quantization/fp8.py of vLLM.
    """

    method = "fp8"
    companions = dict.fromkeys(
        ("weight_scale_inv", "weight_scale", "input_scale", "activation_scale", "input_scale_ub"), "weight"
    )
    dropped = KV_CACHE_SCALES
    excluded_keys = ("modules_to_not_convert", "ignored_layers")

    def __init__(self, quantised: Mapping[str, Any]) -> None:
        super().__init__(quantised)
        block = quantised.get("weight_block_size")
        self._block = (int(block[0]), int(block[1])) if block else None
        self.rows_of_a_block = self._block[0] if self._block else 1
        self.powers_of_two = quantised.get("scale_fmt") == "ue8m0"

    def in_fp8(self, module: str, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int] | None:
        weight = of_dtype(parts["weight"], FP8)
        return weight, *scales_of_rows(fp8_scales(parts), weight.shape, self._block)

    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        return scale(of_dtype(parts["weight"], FP8), fp8_scales(parts), block=self._block)


class FbgemmFp8(Fp8):
    """Weights that Meta quantised by FBGEMM: weight_scale for each channel, and an upper bound of activations."""

    method = "fbgemm_fp8"


def fp8_scales(parts: Mapping[str, Tensor]) -> Tensor:
    scales = parts["weight_scale_inv" if "weight_scale_inv" in parts else "weight_scale"]
    if scales.dtype == torch.uint8:
        raise ValueError("the scales are exponents (uint8), as MXFP8 has them")
    # Model Optimizer keeps the dimensions inside a block: [blocks, 1, blocks, 1].
    return scales[:, 0, :, 0] if scales.ndim == 4 else scales


MODELOPT_BLOCK = (128, 128)


class Modelopt(Fp8):
    """Weights in e4m3 as `Fp8` has them, or in NVFP4: codes uint8 [out, in / 2], weight_scale and weight_scale_2.

    Source: `_export_quantized_weight` of modelopt.torch.export.unified_export_hf; `is_layer_excluded` of
    quantization/modelopt.py of vLLM.
    """

    method = "modelopt"
    companions = dict.fromkeys(("weight_scale", "weight_scale_2", "input_scale", "output_scale"), "weight")
    excluded_keys = ("ignore", "exclude_modules")

    def __init__(self, quantised: Mapping[str, Any]) -> None:
        in_blocks = "FP8_PB_WO" in modelopt_algorithms(quantised)
        super().__init__({**quantised, "weight_block_size": MODELOPT_BLOCK if in_blocks else None})

    def is_excluded(self, module: str) -> bool:
        """True if a pattern with wildcards names the module, or something that it is part of."""
        return any(fnmatchcase(module, each) or fnmatchcase(module, f"{each}.*") for each in self.excluded)

    def in_fp8(self, module: str, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int] | None:
        return None if "weight_scale_2" in parts else super().in_fp8(module, parts)

    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        if "weight_scale_2" not in parts:
            return super().dequantise(module, parts)
        return nvfp4(parts["weight"], parts["weight_scale"].float() * parts["weight_scale_2"])
