"""Products of a decode step's rows with a weight, by whichever of our kernels is the fastest for so many rows."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import Tensor

from hiscore.kernels import gemv, pipelined_products
from hiscore.layers.weights import LayerWeights, Linear, Mlp, Projection

MAX_SMALL = 3 * 2**21
"""Numbers of a weight up to which `gemv` multiplies two rows faster than `pipelined_products`.
Source: perf/results/h100/README.md, products of a step's rows.
"""


@dataclass(frozen=True)
class StepProducts:
    """The most rows that each kernel multiplies; the first that may does. A library multiplies more."""

    gemv_rows: int = gemv.GEMV_MAX_ROWS
    pipelined_rows: int = 0

    @classmethod
    def of(cls, layers: Sequence[LayerWeights], on_hopper: bool) -> "StepProducts":
        """Choose the fastest for a model: one kernel for all products of a step."""
        if not on_hopper or not all(_fit(layer, pipelined_products.fits) for layer in layers):
            return cls()
        # Tensor cores read a weight as fast for several rows as for one.
        small = all(_fit(layer, lambda weight: weight.numel() <= MAX_SMALL) for layer in layers)
        return cls(gemv_rows=2 if small else 1, pipelined_rows=pipelined_products.MAX_ROWS)

    @property
    def chained_rows(self) -> int:
        """Rows up to which kernels around a step's attention are launched dependently: all products are ours."""
        return max(self.gemv_rows, self.pipelined_rows)

    def is_gemv(self, projection: Projection, h: Any) -> TypeGuard[Linear]:
        return isinstance(projection, Linear) and h.shape[0] <= self.gemv_rows and gemv.fits(*h.shape)

    def multiply(
        self, projection: Projection, h: Any, chained: bool, gelu: int | None = None
    ) -> Tensor | None:
        """A projection of h [rows, in], or None where a library is as fast; see `gemv.multiply`.

        For `gemv`, h may be a `gemv.Normed`.
        """
        if not isinstance(projection, Linear) or (gelu is not None and projection.bias is not None):
            return None
        rows, weight, bias = h.shape[0], projection.weight, projection.bias
        if self.is_gemv(projection, h):
            return gemv.multiply(h, weight, bias, gelu=gelu, chained=chained)
        if 0 < rows <= self.pipelined_rows:
            return pipelined_products.multiply(h, weight, bias, gelu, chained)
        return None


def _fit(layer: LayerWeights, fits: Callable[[Tensor], bool]) -> bool:
    mlp = (layer.mlp.gate_up, layer.mlp.down) if isinstance(layer.mlp, Mlp) else (None,)
    return all(isinstance(each, Linear) and fits(each.weight) for each in (layer.qkv, layer.output, *mlp))
