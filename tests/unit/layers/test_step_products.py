"""Which kernel multiplies the rows of a step, and a layer that takes it."""

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.kernels import gemv, pipelined_products
from hiscore.layers import step_products
from hiscore.layers.ops import Ops
from hiscore.layers.step_products import StepProducts
from hiscore.layers.triton_ops import TritonOps
from hiscore.layers.weights import LayerWeights, Linear, Mlp
from tests.support.layers import random

FEW, MORE = gemv.GEMV_MAX_ROWS, pipelined_products.MAX_ROWS
KERNELS = (gemv, pipelined_products)


def layer(inner: int, dtype: torch.dtype, hidden: int = 128) -> LayerWeights:
    norm = torch.ones(hidden)
    sizes = {
        "qkv": (2 * hidden, hidden),
        "output": (hidden, hidden),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    weights = {name: Linear((random(*size, seed=size[0]) / 8).to(dtype)) for name, size in sizes.items()}
    return LayerWeights(
        input_norm=norm, qkv=weights["qkv"], q_norm=None, k_norm=None, output=weights["output"],
        post_attention_norm=None, mlp_norm=norm, mlp=Mlp(weights["gate_up"], weights["down"]), post_mlp_norm=None,
    )  # fmt: skip


def test_all_products_of_a_step_are_computed_alike() -> None:
    bfloat16 = torch.bfloat16
    small, large = layer(128, bfloat16), layer(step_products.MAX_SMALL // 256 + 128, bfloat16)
    assert StepProducts.of([small] * 2, on_hopper=True) == StepProducts(2, MORE)
    # Two rows of large weights are pipelined, too.
    assert StepProducts.of([small, large], on_hopper=True) == StepProducts(1, MORE)
    # Other GPUs have no room for it.
    for layers in ([small] * 2, [small, large]):
        assert StepProducts.of(layers, on_hopper=False) == StepProducts(FEW, 0)
    # Tiles of 128 inputs do not cover 96.
    assert StepProducts.of([small, layer(96, bfloat16)], on_hopper=True) == StepProducts(FEW, 0)
    assert StepProducts.of([layer(128, torch.float32)], on_hopper=True) == StepProducts(FEW, 0)


def noted(kernel: ModuleType, taken: list[ModuleType]) -> Callable[..., torch.Tensor]:
    multiply = kernel.multiply

    def watched(*args: object, **more: object) -> torch.Tensor:
        taken.append(kernel)
        out: torch.Tensor = multiply(*args, **more)
        return out

    return watched


@pytest.mark.parametrize(
    ("products", "rows", "expected"),
    [
        (StepProducts(2, MORE), 2, gemv),
        (StepProducts(2, MORE), 3, pipelined_products),
        (StepProducts(2, MORE), MORE, pipelined_products),
        (StepProducts(2, MORE), MORE + 1, None),
        (StepProducts(1, MORE), 1, gemv),
        (StepProducts(1, MORE), 2, pipelined_products),
        (StepProducts(), FEW + 1, None),
    ],
)
def test_a_layer_of_a_step(
    products: StepProducts, rows: int, expected: ModuleType | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In float16, which is computed in on a CPU as well: steps of 2**-10 at 1, a few of them."""
    taken: list[ModuleType] = []
    for kernel in KERNELS:
        monkeypatch.setattr(kernel, "multiply", noted(kernel, taken))
    of = layer(256, torch.float16)
    mlp = of.mlp
    assert isinstance(mlp, Mlp)
    results = []
    sizes = 4, 2, 32, 1e-6, "silu"
    for ops in (TritonOps(*sizes, step_products=products), Ops(*sizes)):
        x = random(rows, 128, seed=9).float()
        h = ops.add_norm(x, torch.zeros_like(x, dtype=torch.float16), None, of.input_norm)
        qkv = ops.project(of.qkv, h)
        h = ops.project_add_norm(x, of.output, qkv[:, :128].contiguous(), None, of.mlp_norm)
        ops.project_add_norm(x, mlp.down, ops.gate(mlp.gate_up, h), None, of.input_norm)
        results.append(x)
    torch.testing.assert_close(*results, atol=2**-7, rtol=2**-7)
    assert taken == [expected] * (4 if expected else 0)
