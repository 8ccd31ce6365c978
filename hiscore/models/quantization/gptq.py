"""Integer weights: `quant_method: gptq` of AutoGPTQ and GPTQModel, `awq` of AutoAWQ in its gemm layout."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from hiscore.models.quantization.base import Format
from hiscore.models.quantization.schemes import gptq_rules
from hiscore.models.quantization.unpacking import scale, unpack

AWQ_BITS = 4
AWQ_ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Places of the eight outputs of a word: output i is its nibble AWQ_ORDER[i]."""


class Gptq(Format):
    """qweight is packed along the inputs, qzeros along the outputs; weights are stored [in, out].

    In the first format zero points are stored less one: AutoGPTQ adds it back and keeps the lowest bits. gptq_v2
    stores them as they are. With desc_act, g_idx says which group each input belongs to.
    Source: auto_gptq/nn_modules/qlinear/qlinear_cuda.py; `dequantize_weight` of
    gptqmodel/nn_modules/qlinear/__init__.py.
    """

    method = "gptq"
    companions = dict.fromkeys(("qweight", "qzeros", "scales", "g_idx"), "weight")

    def __init__(self, quantised: Mapping[str, Any]) -> None:
        super().__init__(quantised)
        self._bits = int(quantised["bits"])
        layout = quantised.get("checkpoint_format") or quantised.get("format") or "gptq"
        self._rules = gptq_rules(quantised)
        self._subtracted = 0 if str(layout).lower() == "gptq_v2" else 1

    def is_excluded(self, module: str) -> bool:
        return self._own(module) is None or super().is_excluded(module)

    def _own(self, module: str) -> Mapping[str, Any] | None:
        return next((own for pattern, own in self._rules.items() if re.match(pattern, module)), {})

    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        bits, scales = int((self._own(module) or {}).get("bits", self._bits)), parts["scales"]
        values = unpack(parts["qweight"].t(), bits).t()
        zeros = (unpack(parts["qzeros"], bits) + self._subtracted) & (2**bits - 1)
        if (of_group := parts.get("g_idx")) is not None and not _in_order(of_group, len(scales)):
            rows = of_group.long()
            scales, zeros = scales[rows], zeros[rows]
        return scale(values, scales, zeros).t()


def _in_order(of_group: Tensor, groups: int) -> bool:
    """True if g_idx only says that equally many neighbours form each group."""
    inputs = len(of_group)
    expected = torch.arange(inputs, device=of_group.device) * groups // inputs
    return inputs % groups == 0 and bool((of_group == expected).all())


class Awq(Format):
    """qweight and qzeros are packed along the outputs; weights are stored [in, out].

    Source: `dequantize_gemm` of awq/utils/packing_utils.py in casper-hansen/AutoAWQ.
    """

    method = "awq"
    companions = dict.fromkeys(("qweight", "qzeros", "scales"), "weight")

    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        values, zeros = _awq_order(parts["qweight"]), _awq_order(parts["qzeros"])
        return scale(values, parts["scales"], zeros).t()


def _awq_order(words: Tensor) -> Tensor:
    of_words: Tensor = unpack(words, AWQ_BITS).unflatten(-1, (-1, len(AWQ_ORDER)))
    return of_words[..., list(AWQ_ORDER)].flatten(-2)
