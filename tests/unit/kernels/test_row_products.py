"""Products of a step's rows against PyTorch. Without a GPU the kernel runs in Triton's interpreter, on the CPU."""

import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.kernels import gemv, row_products
from hiscore.layers import triton_ops
from hiscore.layers.torch_ops import TorchOps
from hiscore.layers.triton_ops import TritonOps, chained_rows
from hiscore.layers.weights import LayerWeights, Linear, Mlp
from tests.support.layers import random
from tests.support.products import assert_equal_pytorch, operands


@pytest.mark.parametrize("inputs", [24, 1024, pytest.param(3000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rows", [5, row_products.MAX_ROWS])
def test_products_of_some_rows_equal_pytorch(rows: int, inputs: int) -> None:
    """Bound: float32 sums of up to 3,000 products, in another order."""
    assert_equal_pytorch(row_products.multiply, rows, inputs, bound=2e-5)
    x, weight, _ = operands(rows, inputs)
    # Control: the sum of one part of the inputs less.
    short = torch.nn.functional.linear(x[:, 16:], weight[:, 16:])
    assert (row_products.multiply(x, weight) - short).abs().max() > 1e-3


def test_a_row_is_the_same_among_any_number() -> None:
    x, weight = random(row_products.MAX_ROWS, 100, seed=1), random(20, 100, seed=2)
    all_rows = row_products.multiply(x, weight)
    for rows in (5, 11):
        assert torch.equal(row_products.multiply(x[:rows], weight), all_rows[:rows])


def test_rows_need_contiguous_tensors() -> None:
    with pytest.raises(ValueError, match="contiguous"):
        row_products.multiply(random(5, 48)[:, :24], random(20, 24))


def layer(inner: int, dtype: torch.dtype) -> LayerWeights:
    hidden, norm = 64, torch.ones(64)
    sizes = {
        "qkv": (128, hidden),
        "output": (hidden, 64),
        "gate_up": (2 * inner, hidden),
        "down": (hidden, inner),
    }
    weights = {name: Linear((random(*size, seed=size[0]) / 8).to(dtype)) for name, size in sizes.items()}
    return LayerWeights(
        input_norm=norm, qkv=weights["qkv"], q_norm=None, k_norm=None, output=weights["output"],
        post_attention_norm=None, mlp_norm=norm, mlp=Mlp(weights["gate_up"], weights["down"]), post_mlp_norm=None,
    )  # fmt: skip


def test_only_where_all_products_of_a_step_fit() -> None:
    few, some = gemv.GEMV_MAX_ROWS, row_products.MAX_ROWS
    assert chained_rows([layer(96, torch.bfloat16)] * 2) == some
    assert chained_rows([layer(96, torch.bfloat16), layer(96, torch.float32)]) == few
    assert chained_rows([layer(row_products.MAX_INPUTS + 8, torch.bfloat16)]) == few


@pytest.mark.parametrize("rows", [3, 5, row_products.MAX_ROWS, row_products.MAX_ROWS + 1])
def test_a_layer_of_a_step(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float16, which is computed in on a CPU as well: steps of 2**-10 at 1, a few of them."""
    taken = []
    multiply = row_products.multiply

    def noted(*args: object, **more: object) -> torch.Tensor:
        taken.append(args)
        return multiply(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(triton_ops.row_products, "multiply", noted)
    of = layer(96, torch.float16)
    mlp = of.mlp
    assert isinstance(mlp, Mlp)
    results = []
    for ops in (
        TritonOps(2, 1, 32, 1e-6, "silu", for_steps=True, chained=chained_rows([of])),
        TorchOps(2, 1, 32, 1e-6, "silu"),
    ):
        x = random(rows, 64, seed=9).float()
        h = ops.add_norm(x, torch.zeros_like(x, dtype=torch.float16), None, of.input_norm)
        qkv = ops.project(of.qkv, h)
        h = ops.project_add_norm(x, of.output, qkv[:, :64].contiguous(), None, of.mlp_norm)
        ops.project_add_norm(x, mlp.down, ops.gate(mlp.gate_up, h), None, of.input_norm)
        results.append(x)
    torch.testing.assert_close(*results, atol=2**-7, rtol=2**-7)
    assert len(taken) == (4 if gemv.GEMV_MAX_ROWS < rows <= row_products.MAX_ROWS else 0)
