"""Which kernels of cuBLASLt are tried, and which products they may compute. They run in tests/gpu."""

import ctypes
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.kernels import cublaslt
from hiscore.kernels.cublaslt import CLUSTERS, TILES, Kernel, Product, Refused
from hiscore.layers import library_products
from hiscore.layers.library_products import TILES_TRIED, LibraryProducts, fastest, tiles_by_time
from hiscore.layers.products import linear
from hiscore.layers.triton_ops import TritonOps
from hiscore.layers.weights import LayerWeights, Linear, Mlp
from tests.support.layers import layer_of, random

FASTEST = [
    # Rows, outputs and the fastest tile of 40, on an H200 (perf/results/h200/kernel_search.txt).
    (320, 1_024, (64, 40)),
    (832, 1_024, (64, 104)),
    (704, 1_024, (64, 88)),
    (1_152, 1_024, (128, 72)),
    (1_920, 1_024, (128, 120)),
    (1_792, 4_096, (128, 224)),
    (320, 6_144, (192, 80)),
    (1_920, 6_144, (256, 176)),
    (320, 2_560, (64, 112)),
    (640, 6_144, (240, 128)),
]


@pytest.mark.parametrize(("rows", "outputs", "tile"), FASTEST)
def test_the_fastest_tile_is_among_the_first(rows: int, outputs: int, tile: tuple[int, int]) -> None:
    assert tile in tiles_by_time(rows, outputs, 132)[:TILES_TRIED]
    # Control: by the multiprocessors of another GPU.
    assert tile not in tiles_by_time(rows, outputs, 20)[:TILES_TRIED]


def test_all_tiles_are_there_once() -> None:
    tiles = tiles_by_time(320, 1_024, 132)
    assert len(set(tiles)) == len(tiles) == len(TILES)


def test_tiles_have_the_librarys_numbers() -> None:
    headers = list(Path(torch.__file__).parents[1].glob("nvidia/*/include/cublasLt.h"))
    if not headers:
        pytest.skip("this build of torch brings no header of cuBLASLt")
    named = re.findall(r"CUBLASLT_MATMUL_TILE_(\d+)x(\d+) *= *(\d+)", headers[0].read_text())
    numbers = {(int(outputs), int(rows)): int(tile) for outputs, rows, tile in named}
    assert len(numbers) > len(TILES)
    assert {tile: numbers[tile] for tile in TILES} == TILES
    for cluster, name in zip(CLUSTERS, ("1x1x1", "2x1x1", "1x2x1"), strict=True):
        assert re.search(rf"CLUSTER_SHAPE_{name} *= *{cluster}\b", headers[0].read_text())


@pytest.mark.parametrize("biased", [False, True])
def test_only_a_product_of_that_shape_takes_the_kernel(biased: bool) -> None:
    calls = []

    def product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        calls.append(x.shape)
        return torch.nn.functional.linear(x, weight, bias)

    weight, x = random(6, 8), random(4, 8, seed=1)
    bias, other_bias = (random(6), None) if biased else (None, random(6))
    chosen = LibraryProducts({(4, 6, 8, biased): product})  # type: ignore[dict-item]
    ops = TritonOps(1, 1, 2, 1e-6, "silu", library_products=chosen)
    ops.project(Linear(weight, bias), x)
    assert calls == [(4, 8)]
    ops.gate(Linear(weight, bias), x)
    assert calls == [(4, 8)] * 2
    for other, of in (
        (Linear(weight, bias), x[:3]),
        (Linear(weight, other_bias), x),
        (Linear(weight, random(7)[1:]), x),
        (Linear(weight.T.contiguous().T, bias), x),
        (Linear(weight, bias), x.T.contiguous().T),
        (Linear(random(6 * 8 + 1)[1:].reshape(6, 8), bias), x),
        (Linear(random(5, 8)), x),
    ):
        expected = torch.nn.functional.linear(of, other.weight, other.bias)
        torch.testing.assert_close(ops.project(other, of), expected)
    assert calls == [(4, 8)] * 2


def layer_in(dtype: torch.dtype) -> LayerWeights:
    """A layer whose weights all are one."""
    weight = Linear(random(64, 64).to(dtype))
    return replace(layer_of(None, None), qkv=weight, output=weight, mlp=Mlp(weight, weight))


@pytest.mark.parametrize(("dtype", "multiprocessors", "tried"), [
    (torch.bfloat16, 132, {128, 4_608}), (torch.bfloat16, 0, set()), (torch.float32, 132, set()),
])  # fmt: skip
def test_kernels_are_tried_on_a_hopper_for_few_rows_in_16_bits(
    dtype: torch.dtype, multiprocessors: int, tried: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = set()

    def fastest(projections: Sequence[Linear], rows: int, multiprocessors: int) -> None:
        asked.add(rows)

    monkeypatch.setattr(library_products, "fastest", fastest)
    monkeypatch.setattr(cublaslt, "is_available", lambda: True)
    LibraryProducts.measure([layer_in(dtype)], [128, 4_608, 5_120], multiprocessors)
    assert asked == tried


def test_biases_make_products_of_another_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gate and up with a bias are computed by no kernel of ours, unlike those without one."""
    asked = []

    def fastest(projections: Sequence[Linear], rows: int, multiprocessors: int) -> Product:
        (outputs, inputs), bias = projections[0].weight.shape, projections[0].bias
        asked.append((outputs, inputs, bias is not None, len(projections)))
        assert all((each.bias is None) == (bias is None) for each in projections)
        return cast(Product, bias)

    def of(outputs: int, inputs: int, biased: bool) -> Linear:
        bias = torch.zeros(outputs, dtype=torch.bfloat16) if biased else None
        return Linear(torch.empty(outputs, inputs, dtype=torch.bfloat16), bias)

    monkeypatch.setattr(library_products, "fastest", fastest)
    monkeypatch.setattr(cublaslt, "is_available", lambda: True)
    layers = [
        replace(
            layer_of(None, None), qkv=of(64, 64, True), output=of(64, 64, False),
            mlp=Mlp(of(6_144, 1_024, gated), of(1_024, 3_072, False)),
        )
        for gated in (False, True)
    ]  # fmt: skip
    chosen = LibraryProducts.measure(layers, [320], 132).chosen
    assert sorted(asked) == [
        (64, 64, False, 2), (64, 64, True, 2), (1_024, 3_072, False, 2), (6_144, 1_024, True, 1),
    ]  # fmt: skip
    assert chosen[320, 64, 64, True] is layers[0].qkv.bias  # type: ignore[union-attr, comparison-overlap]
    assert (320, 64, 64, False) not in chosen


class Kernels:
    """Kernels that compute on the CPU, and how long each takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._times: dict[Product | None, float] = {None: 10.0}
        monkeypatch.setattr(library_products, "products_to_try", lambda *_: [*self._times][1:])
        monkeypatch.setattr(library_products, "in_turns", self._in_turns)

    def add(
        self, microseconds: float, compute: Callable[[Tensor, Tensor, Tensor | None, Tensor], Tensor]
    ) -> Product:
        product = cast(Product, compute)
        self._times[product] = microseconds
        return product

    def _in_turns(self, arms: Iterable[Product | None], rounds: int = 7) -> dict[Product | None, float]:
        return {arm: self._times[arm] for arm in arms}


def right(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
    return out.copy_(linear(x, weight, bias))


def test_the_fastest_kernel_is_taken_if_it_gains_something(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels, projections = Kernels(monkeypatch), [Linear(random(6, 8))]
    assert fastest(projections, 4, 132) is None
    kernels.add(9.9, lambda *tensors: right(*tensors))
    assert fastest(projections, 4, 132) is None
    faster = kernels.add(9.0, lambda *tensors: right(*tensors))
    kernels.add(9.5, lambda *tensors: right(*tensors))
    assert fastest(projections, 4, 132) is faster


@pytest.mark.parametrize("what", ["other bits", "no bias", "nothing", "refused"])
def test_a_kernel_without_the_librarys_bits_is_not_taken(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def wrong(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
        if what == "refused":
            raise Refused("status 15")
        if what == "nothing":
            return out
        return right(x, weight, None, out) if what == "no bias" else right(x, weight, bias, out).add_(2**-20)

    kernels, projections = Kernels(monkeypatch), [Linear(random(6, 8), random(6))]
    # Its result is where the next kernel writes.
    taken = kernels.add(9.0, right)
    kernels.add(1.0, wrong)
    assert fastest(projections, 4, 132) is taken
    assert (
        "4x8 by 8x6: cuBLASLt has kernels without the bits of its own choice, which are not used: 1"
        in caplog.text
    )


def test_without_the_library_a_model_is_served_by_what_torch_chooses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def not_there(name: str, mode: int) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(ctypes, "CDLL", not_there)
    cublaslt._library.cache_clear()
    assert LibraryProducts.measure([layer_in(torch.bfloat16)], [128], multiprocessors=132).chosen == {}
    assert "cuBLASLt is not loaded" in caplog.text


def test_a_kernel_is_told_by_its_numbers() -> None:
    assert Kernel(15, 2, 0) == Kernel(15, 2, 0) != Kernel(15, 2, 1)
    assert set(cublaslt.TYPES) == {torch.float16, torch.bfloat16}
