"""Which kernels of cuBLASLt are tried, and which products they may compute. They run in tests/gpu."""

import ctypes
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.kernels import cublaslt
from hiscore.kernels.cublaslt import CLUSTERS, TILES, Kernel
from hiscore.layers.library_products import TILES_TRIED, LibraryProducts, tiles_by_time
from hiscore.layers.triton_ops import TritonOps
from hiscore.layers.weights import Linear, Mlp
from tests.support.layers import layer_of, random

FASTEST = [
    # Rows, outputs and the fastest tile of 40, each by some 6 kernels, on an H200.
    (320, 1_024, (64, 40)),
    (832, 1_024, (64, 104)),
    (704, 1_024, (64, 88)),
    (1_152, 1_024, (128, 72)),
    (1_920, 1_024, (128, 120)),
    (1_792, 4_096, (256, 112)),
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


def test_only_a_product_of_that_shape_without_bias_takes_the_kernel() -> None:
    calls = []

    def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x @ weight.T

    weight, x = random(6, 8), random(4, 8, seed=1)
    chosen = LibraryProducts({(4, 6, 8): product})  # type: ignore[dict-item]
    ops = TritonOps(1, 1, 2, 1e-6, "silu", library_products=chosen)
    ops.project(Linear(weight), x)
    assert calls == [(4, 8)]
    ops.gate(Linear(weight), x)
    assert calls == [(4, 8)] * 2
    for other, of in (
        (Linear(weight), x[:3]),
        (Linear(weight, random(6)), x),
        (Linear(weight.T.contiguous().T), x),
        (Linear(weight), x.T.contiguous().T),
        (Linear(random(6 * 8 + 1)[1:].reshape(6, 8)), x),
        (Linear(random(5, 8)), x),
    ):
        expected = torch.nn.functional.linear(of, other.weight, other.bias)
        torch.testing.assert_close(ops.project(other, of), expected)
    assert calls == [(4, 8)] * 2


def test_nothing_is_tried_where_there_is_no_hopper() -> None:
    assert LibraryProducts.measure([layer_of(None, None)], [128], multiprocessors=0).chosen == {}


def test_weights_of_more_than_16_bits_are_left_to_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a kernel would be tried, and there may be no GPU in this test."""
    monkeypatch.setattr(cublaslt, "is_available", lambda: True)
    assert LibraryProducts.measure([layer_of(None, None)], [128], multiprocessors=132).chosen == {}


def test_without_the_library_a_model_is_served_by_what_torch_chooses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def not_there(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    weight = Linear(random(64, 64).bfloat16())
    layer = replace(layer_of(None, None), qkv=weight, output=weight, mlp=Mlp(weight, weight))
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(ctypes, "CDLL", not_there)
    cublaslt._library.cache_clear()
    assert LibraryProducts.measure([layer], [128], multiprocessors=132).chosen == {}
    assert "cuBLASLt is not found" in caplog.text


def test_a_kernel_is_told_by_its_numbers() -> None:
    assert Kernel(15, 2, 0) == Kernel(15, 2, 0) != Kernel(15, 2, 1)
    assert set(cublaslt.TYPES) == {torch.float16, torch.bfloat16}
