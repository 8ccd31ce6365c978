"""On a GPU in bfloat16, at the widths of an 8B model: a score moves neither with its batch nor under load."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.device import copies as device
from hiscore.layers import weights
from hiscore.layers.products import linear
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from perf.scoring.row_invariance import alone, differing_rows, requests, scores, shapes_of
from tests.support.strategies import Tokens, random_tokens
from tests.support.under_load import scores_alone, scores_under_load

pytestmark = pytest.mark.gpu
LAYERS = 4
MOVED = 1e-6
"""A float32 head's rounding, of probabilities up to 1; the hidden states have equal bits."""


FEW_ROWS = 512
"""Up to so many rows `split_for_few_rows` splits: those of an item alone, and not those of a call."""


def split_for_few_rows(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    """The control: as cuBLAS splits a sum where a product has few rows. Whether it does depends on its version."""
    if len(x) > FEW_ROWS:
        return linear(x, weight, bias)
    middle = weight.shape[1] // 2
    return linear(x[:, :middle], weight[:, :middle], bias) + linear(x[:, middle:], weight[:, middle:])


def take_split_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "linear", split_for_few_rows)


def restore_blas_settings() -> None:
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = True
    torch.backends.cuda.preferred_blas_library("default")


@pytest.fixture
def blas_settings() -> Iterator[None]:
    """torch's own settings, which a scorer of another test may have changed, before and after a test."""
    restore_blas_settings()
    yield
    restore_blas_settings()


@pytest.mark.parametrize("model", ["qwen3-0.6b", "qwen3-8b"])
def test_no_bit_of_a_product_depends_on_its_rows(model: str, blas_settings: None) -> None:
    generator = torch.Generator("cuda").manual_seed(0)

    def products() -> dict[str, list[int]]:
        differing = {}
        for name, (inputs, outputs) in shapes_of(model).items():
            x = torch.randn(8_192, inputs, generator=generator, device="cuda").bfloat16()
            weight = torch.randn(outputs, inputs, generator=generator, device="cuda").bfloat16() * 0.02
            differing[name] = [n for n in differing_rows(x, weight) if n > 1]
        return differing

    assert any(products().values()), "the control: cuBLAS splits no sum at these sizes any more"
    device.fix_product_sums()
    assert not any(products().values())


@pytest.mark.parametrize(("item", "fixed"), [(100, True), (100, False), (5, True)])
def test_scores_are_those_of_an_item_alone(
    item: int, fixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blas_settings: None
) -> None:
    if not fixed:
        take_split_sums(monkeypatch)
    monkeypatch.setitem(GEOMETRIES, "cut-8b", GEOMETRIES["qwen3-8b"] | {"num_hidden_layers": LAYERS})
    with random_checkpoint.in_memory("cuda"):
        random_checkpoint.write_config("cut-8b", tmp_path, 8_192)
        scorer = load_decoder_scorer(tmp_path, "cuda", "bfloat16", 8_192, query_cache_bytes=0)
    # Items of 5 share blocks of keys, so that each is elsewhere in its block than alone.
    calls = requests(0, 150_000, item)
    one_by_one = np.concatenate([scores(scorer, [item]) for call in calls for item in alone(call)])
    in_calls = np.concatenate([scores(scorer, [call]) for call in calls])
    in_batch = scores(scorer, calls)
    moved = max(np.abs(in_calls - one_by_one).max(), np.abs(in_batch - one_by_one).max())
    assert bool(moved < MOVED) == fixed, moved


@pytest.mark.parametrize("fixed", [True, False])
def test_scores_under_load_are_those_of_an_item_alone(
    fixed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, blas_settings: None
) -> None:
    """Threads, two batches in flight, parts of calls, and queries that come from the cache."""
    if not fixed:
        take_split_sums(monkeypatch)
    monkeypatch.setitem(GEOMETRIES, "cut-8b", GEOMETRIES["qwen3-8b"] | {"num_hidden_layers": LAYERS})
    with random_checkpoint.in_memory("cuda"):
        random_checkpoint.write_config("cut-8b", tmp_path, 8_192)
        scorer = load_decoder_scorer(tmp_path, "cuda", "bfloat16", 4_096, query_cache_bytes=2**28)
    rng = np.random.default_rng(0)
    shared = rng.integers(0, 150_000, 100).tolist()
    calls = []
    for index in range(200):
        items = rng.integers(1, 200, int(rng.choice([1, 3, 10, 60]))).tolist()
        call = random_tokens(rng, int(rng.integers(2, 300)), items, 150_000)
        calls.append(Tokens(shared, call.items) if index % 4 == 0 else call)
    options = ScoreOptions(apply_softmax=True)
    found, stats = scores_under_load(scorer, calls, options, 4_096)
    assert stats.cached_tokens > 0
    truth = scores_alone(scorer, calls, options)
    moved = max(np.abs(scores - alone).max() for scores, alone in zip(found, truth, strict=True))
    assert bool(moved < MOVED) == fixed, moved
