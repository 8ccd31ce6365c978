"""Decode steps of few rows on a GPU: kernels that start while earlier ones still run."""

from dataclasses import replace

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (9, 0):
    pytest.skip("needs a GPU with programmatic dependent launch", allow_module_level=True)

from hiscore.kernels import gemv, pipelined_products
from hiscore.layers import triton_ops
from hiscore.layers.ops import Ops
from hiscore.layers.step_products import StepProducts
from hiscore.layers.triton_ops import TritonOps
from hiscore.layers.weights import LayerWeights, Linear, Mlp

HEADS, KV_HEADS, HEAD_DIM, WIDTH, INNER = 16, 8, 128, 1024, 3072


def weight(*shape: int, seed: int) -> torch.Tensor:
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[-1] ** 0.5
    return values.bfloat16().cuda()


def layers() -> list[LayerWeights]:
    ones = torch.ones(WIDTH, device="cuda")
    heads, attended = (HEADS + 2 * KV_HEADS) * HEAD_DIM, HEADS * HEAD_DIM
    shapes = (heads, WIDTH), (WIDTH, attended), (2 * INNER, WIDTH), (WIDTH, INNER)

    def layer(seed: int) -> LayerWeights:
        qkv, output, gate_up, down = (Linear(weight(*each, seed=seed + n)) for n, each in enumerate(shapes))
        return LayerWeights(ones, qkv, None, None, output, None, ones, Mlp(gate_up, down), None)

    return [layer(4 * i) for i in range(8)]


def _in_float32(layer: LayerWeights) -> LayerWeights:
    attention = {name: Linear(getattr(layer, name).weight.float()) for name in ("qkv", "output")}
    mlp = {name: Linear(getattr(layer.mlp, name).weight.float()) for name in ("gate_up", "down")}
    return replace(layer, **attention, mlp=Mlp(**mlp))


def run(weights: list[LayerWeights], ops: Ops, x: torch.Tensor) -> torch.Tensor:
    """Layers without attention: each kernel reads what the one before it has written."""
    x = x.clone()
    h = ops.add_norm(
        x, torch.zeros_like(x, dtype=weights[0].mlp.down.weight.dtype), None, weights[0].input_norm
    )
    for layer in weights:
        qkv = ops.project(layer.qkv, h)
        heads = qkv[:, : HEADS * HEAD_DIM].contiguous()
        h = ops.project_add_norm(x, layer.output, heads, None, layer.mlp_norm)
        h = ops.project_add_norm(x, layer.mlp.down, ops.gate(layer.mlp.gate_up, h), None, layer.input_norm)
    return x


@pytest.mark.parametrize("rows", [triton_ops.PDL_MIN_ROWS, 1_920])
def test_a_chain_between_library_products_gives_the_bits_of_kernels_that_wait(
    rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows: embedding and norms chained, between products that are not."""
    assert triton_ops.supports_pdl()
    weights, norm = layers(), torch.ones(WIDTH, device="cuda")
    ops = TritonOps(HEADS, KV_HEADS, HEAD_DIM, 1e-6, "silu")
    generator = torch.Generator().manual_seed(rows)
    table = torch.randn(500, WIDTH, generator=generator).bfloat16().cuda()
    ids = torch.randint(500, (rows,), generator=generator).int().cuda()

    def embed_and_run() -> torch.Tensor:
        x, _ = ops.embed(ids, table, 1.0, norm)
        return run(weights, ops, x)

    monkeypatch.setattr(triton_ops, "supports_pdl", lambda: False)
    expected = embed_and_run()
    monkeypatch.setattr(triton_ops, "supports_pdl", lambda: True)
    assert torch.equal(embed_and_run(), expected)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = embed_and_run()
    for _ in range(100):
        found.zero_()
        graph.replay()
        assert torch.equal(found, expected)
    # Control: another token is seen.
    ids[0] = (ids[0] + 1) % 500
    graph.replay()
    assert not torch.equal(found, expected)


@pytest.mark.parametrize("rows", [1, 2, gemv.GEMV_MAX_ROWS, 5, 16, 24, 33, pipelined_products.MAX_ROWS])
def test_a_chain_gives_the_bits_of_kernels_that_wait(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert triton_ops.supports_pdl()
    weights = layers()
    products = StepProducts.of(weights, on_hopper=True)
    assert 0 < products.gemv_rows < products.pipelined_rows
    ops = TritonOps(HEADS, KV_HEADS, HEAD_DIM, 1e-6, "silu", step_products=products)
    x = torch.randn(rows, WIDTH, generator=torch.Generator().manual_seed(1)).cuda()
    monkeypatch.setattr(triton_ops, "supports_pdl", lambda: False)
    expected = run(weights, ops, x)
    monkeypatch.setattr(triton_ops, "supports_pdl", lambda: True)
    run(weights, ops, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = run(weights, ops, x)
    for _ in range(100):
        found.zero_()
        graph.replay()
        assert torch.equal(found, expected)
        assert torch.equal(run(weights, ops, x), expected)
    # As near to what float32 gives as a library's products, which round more often.
    exact = run([_in_float32(layer) for layer in weights], Ops(HEADS, KV_HEADS, HEAD_DIM, 1e-6, "silu"), x)
    library = run(weights, TritonOps(HEADS, KV_HEADS, HEAD_DIM, 1e-6, "silu"), x)
    assert (found - exact).square().mean() <= 1.1 * (library - exact).square().mean()
    assert (found - exact).abs().max() < 0.1 < exact.std()
    # Control: another weight is seen.
    other = Mlp(weights[3].mlp.gate_up, Linear(weight(WIDTH, INNER, seed=99)))
    weights[3] = replace(weights[3], mlp=other)
    assert not torch.equal(run(weights, ops, x), expected)
