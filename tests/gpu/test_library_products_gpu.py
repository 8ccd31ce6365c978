"""Kernels of cuBLASLt by name, on a Hopper: the bits of the library's own choice, at the sizes of real models."""

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore import graph_timer
from hiscore.device import fix_product_sums
from hiscore.graph_timer import graph_of
from hiscore.kernels.cublaslt import CLUSTERS, TILES, Kernel, Product, Refused
from hiscore.layers import library_products
from hiscore.layers.library_products import TILES_TRIED, LibraryProducts, fastest, products_to_try
from hiscore.layers.triton_ops import TritonOps, hopper_sm_count
from hiscore.layers.weights import LayerWeights, Linear, Mlp
from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from tests.support.strategies import random_tokens

IS_HOPPER = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] == 9
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not IS_HOPPER, reason="written for GPUs of compute capability 9"),
]

SHAPES = {
    "Qwen3-0.6B, output": (1_024, 2_048),
    "Qwen3-0.6B, down": (1_024, 3_072),
    "Qwen3-4B, down": (2_560, 9_728),
    "Qwen3-8B, q, k, v": (6_144, 4_096),
}


@pytest.fixture(autouse=True)
def _sums_in_one_piece() -> None:
    fix_product_sums()


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, generator=generator, device="cuda", dtype=dtype)


def projections_of(name: str, dtype: torch.dtype, biased: bool = False, count: int = 2) -> list[Linear]:
    outputs, inputs = SHAPES[name]
    return [
        Linear(
            random(outputs, inputs, dtype=dtype, seed=seed) / inputs**0.5,
            random(outputs, dtype=dtype, seed=seed) if biased else None,
        )
        for seed in range(count)
    ]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [128, 320, 832, 1_792])
@pytest.mark.parametrize("name", SHAPES)
def test_all_that_may_be_tried_have_the_librarys_bits(
    name: str, rows: int, dtype: torch.dtype, biased: bool
) -> None:
    one, other = projections_of(name, dtype, biased)
    x = random(rows, one.weight.shape[1], dtype=dtype, seed=7)
    expected, wrong = one(x), other(x)
    products = products_to_try(one, rows, hopper_sm_count())
    assert 1 <= len({product.kernel.tile for product in products}) <= TILES_TRIED
    for product in products:
        out = torch.full_like(expected, torch.nan)
        assert product(x, one.weight, one.bias, out) is out
        assert torch.equal(out, expected)
        # Controls: another weight, and another bias.
        assert not torch.equal(product(x, other.weight, one.bias), expected)
        assert torch.equal(product(x, one.weight, other.bias), expected) != biased
        assert torch.equal(product(x, other.weight, other.bias), wrong)


def test_a_kernel_that_cannot_is_refused() -> None:
    """A tile of 104 rows cannot be cut into two of 64."""
    (one,) = projections_of("Qwen3-0.6B, output", torch.bfloat16, count=1)
    Product(320, one.weight, None, Kernel(TILES[64, 104], CLUSTERS[0], 1))
    with pytest.raises(Refused, match="does not multiply 320x2048 by 2048x1024"):
        Product(320, one.weight, None, Kernel(TILES[64, 104], CLUSTERS[0], 0))


def test_captures_share_a_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = projections_of("Qwen3-0.6B, output", torch.bfloat16, count=1)
    x = random(320, 2_048, dtype=torch.bfloat16)
    runs = [partial(torch.mm, x, one.weight.T, out=x.new_empty(320, 1_024))]
    runs[0]()
    graph_of(runs)
    before = torch.cuda.memory_allocated()
    graph_of(runs)
    assert torch.cuda.memory_allocated() <= before
    # Control: a stream for each.
    monkeypatch.setattr(graph_timer, "capture_stream", lambda _: torch.cuda.Stream())
    graph_of(runs)
    assert torch.cuda.memory_allocated() > before


@pytest.mark.parametrize("biased", [False, True])
def test_a_graph_replays_what_was_chosen(biased: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On other numbers than were there at the capture. A kernel is taken however slow, so no clock decides."""
    monkeypatch.setattr(library_products, "LEAST_GAIN", -10.0)
    projections = projections_of("Qwen3-0.6B, output", torch.bfloat16, biased)
    product = fastest(projections, 320, hopper_sm_count())
    assert product is not None
    chosen = LibraryProducts({(320, 1_024, 2_048, biased): product})
    ops = TritonOps(1, 1, 2, 1e-6, "silu", library_products=chosen)
    x = random(320, 2_048, dtype=torch.bfloat16, seed=1)
    ops.project(projections[0], x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = ops.project(projections[0], x)
    before = projections[0](x)
    x.copy_(random(320, 2_048, dtype=torch.bfloat16, seed=2))
    graph.replay()
    assert torch.equal(found, projections[0](x))
    assert not torch.equal(found, before)


def test_a_kernel_with_other_bits_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Wrong(Product):
        def __call__(
            self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None
        ) -> Tensor:
            return super().__call__(x, weight, bias, out).add_(2**-10)

    monkeypatch.setattr(library_products, "LEAST_GAIN", -10.0)
    monkeypatch.setattr(library_products, "Product", Wrong)
    with caplog.at_level(logging.WARNING):
        projections = projections_of("Qwen3-0.6B, output", torch.bfloat16)
        assert fastest(projections, 320, hopper_sm_count()) is None
    assert "without the bits of its own choice" in caplog.text


def test_a_models_products_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of 16 bits, at few rows, and gate and up only where no kernel of ours computes them."""
    asked: list[tuple[int, int, int]] = []

    def watched(projections: Sequence[Linear], rows: int, multiprocessors: int) -> None:
        assert len(projections) == 2
        asked.append((rows, *projections[0].weight.shape))

    monkeypatch.setattr(library_products, "fastest", watched)

    def layer(seed: int) -> LayerWeights:
        def linear(outputs: int, inputs: int) -> Linear:
            return Linear(random(outputs, inputs, dtype=torch.bfloat16, seed=seed))

        mlp = Mlp(linear(6_144, 1_024), linear(1_024, 3_072))
        # A bias in another dtype is not read by these kernels.
        qkv = Linear(linear(4_096, 1_024).weight, torch.zeros(4_096))
        return LayerWeights(None, qkv, None, None, linear(1_024, 2_048), None, None, mlp, None)

    LibraryProducts.measure([layer(0), layer(1)], [320, 1_024, 16_384], 132)
    assert sorted(asked) == [
        (320, 1_024, 2_048),
        (320, 1_024, 3_072),
        (1_024, 1_024, 2_048),
        (1_024, 1_024, 3_072),
        (1_024, 6_144, 1_024),
    ]


@pytest.mark.parametrize("model", ["qwen3-0.6b", "qwen2.5-0.5b"])
def test_a_scorer_takes_what_was_chosen_and_keeps_its_scores(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second has biases."""
    biased = model == "qwen2.5-0.5b"
    ran: list[bool] = []

    class Watched(Product):
        off = 0.0

        def __call__(
            self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None
        ) -> Tensor:
            found = super().__call__(x, weight, bias, out)
            if out is not None:  # while it is tried
                return found
            ran.append(bias is not None)
            return found + self.off

    monkeypatch.setitem(GEOMETRIES, "cut", GEOMETRIES[model] | {"num_hidden_layers": 2})
    monkeypatch.setattr(library_products, "LEAST_GAIN", -10.0)
    monkeypatch.setattr(library_products, "Product", Watched)
    random_checkpoint.write_config("cut", tmp_path, 1_024)
    prompt = random_tokens(np.random.default_rng(0), 100, [60] * 5, 150_000).prompt()
    request = ScoreRequest(prompt, np.array([5, 77], np.int32), ScoreOptions())

    def scores(most_rows: int) -> np.ndarray:
        monkeypatch.setattr(library_products, "MOST_ROWS", most_rows)
        with random_checkpoint.in_memory("cuda"):
            scorer = Scorer(tmp_path, "cuda", "bfloat16", 512, query_cache_bytes=0)
        answers, _ = scorer.score([request])
        return answers[0].scores

    own = scores(0)
    assert not ran
    np.testing.assert_array_equal(scores(512), own)
    assert biased in ran
    # Control: other products in the forward than were compared.
    monkeypatch.setattr(Watched, "off", 0.5)
    assert not np.array_equal(scores(512), own)
