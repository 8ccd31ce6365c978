"""`quant_method: modelopt`: what NVIDIA's Model Optimizer writes, in fp8 and NVFP4."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from torch import Tensor

from hiscore.models.quantization.fp8 import Fp8
from hiscore.models.quantization.schemes import modelopt_algorithms
from hiscore.models.quantization.unpacking import nvfp4

BLOCK = (128, 128)


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
        super().__init__({**quantised, "weight_block_size": BLOCK if in_blocks else None})

    def is_excluded(self, module: str) -> bool:
        """True if a pattern with wildcards names the module, or something that it is part of."""
        return any(fnmatchcase(module, each) or fnmatchcase(module, f"{each}.*") for each in self.excluded)

    def in_fp8(self, module: str, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int] | None:
        return None if "weight_scale_2" in parts else super().in_fp8(module, parts)

    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        if "weight_scale_2" not in parts:
            return super().dequantise(module, parts)
        return nvfp4(parts["weight"], parts["weight_scale"].float() * parts["weight_scale_2"])
