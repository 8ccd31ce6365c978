"""`quant_method: awq`: 4-bit weights in AutoAWQ's gemm layout."""

from collections.abc import Mapping

from torch import Tensor

from hiscore.models.quantization.base import Format
from hiscore.models.quantization.unpacking import scale, unpack

BITS = 4
ORDER = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where the eight outputs of a word are: output i is its nibble ORDER[i]."""


class Awq(Format):
    """qweight and qzeros are packed along the outputs; weights are stored [in, out].

    Source: `dequantize_gemm` of awq/utils/packing_utils.py in casper-hansen/AutoAWQ.
    """

    method = "awq"
    companions = dict.fromkeys(("qweight", "qzeros", "scales"), "weight")

    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        values, zeros = _in_order(parts["qweight"]), _in_order(parts["qzeros"])
        return scale(values, parts["scales"], zeros).t()


def _in_order(words: Tensor) -> Tensor:
    of_words: Tensor = unpack(words, BITS).unflatten(-1, (-1, len(ORDER)))
    return of_words[..., list(ORDER)].flatten(-2)
