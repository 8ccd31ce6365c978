"""Experts against transformers' own block on the same rows, and the ways to compute them against each other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from hiscore.models.deepseek import moe as moe_module
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.loader import MoeWeights
from hiscore.models.deepseek.moe import gathered, grouped, looped, moe, route
from tests.support import tiny_dsa

LAYER = 2


@pytest.fixture(scope="module", params=["deepseek-experts", "glm-experts"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dsa.make(request.param, tmp_path_factory.mktemp(request.param))


def ours(checkpoint: Path, dtype: torch.dtype) -> tuple[MoeWeights, Any]:
    decoder = DsaDecoder(checkpoint, torch.device("cpu"), dtype)
    weights = decoder.weights.layers[LAYER].mlp
    assert isinstance(weights, MoeWeights)
    return weights, decoder.architecture.experts


def rows(count: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, tiny_dsa.SIZES["hidden_size"], generator=generator, dtype=dtype)


@pytest.mark.parametrize("count", [1, 50])
def test_matches_transformers(checkpoint: Path, count: int) -> None:
    """Routing is float32 in both, of the same operands and so with the same bits: float64 shows in full."""
    weights, experts = ours(checkpoint, torch.float64)
    # A copy is aligned as transformers' is: a CPU's library may add up in another order otherwise.
    weights = replace(weights, router=weights.router.clone())
    h = rows(count, torch.float64)
    block = tiny_dsa.reference(checkpoint, torch.float64).model.layers[LAYER].mlp
    with torch.inference_mode():
        torch.testing.assert_close(moe(weights, experts, h), block(h), atol=1e-12, rtol=0)


@pytest.mark.parametrize("count", [1, 50])
@pytest.mark.parametrize("limit", [0, 10**9])
def test_few_and_many_rows_take_other_ways_to_the_same_result(
    checkpoint: Path, count: int, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, experts = ours(checkpoint, torch.float64)
    h = rows(count, torch.float64)
    expected = moe(weights, experts, h)
    monkeypatch.setattr(moe_module, "MAX_GATHERED_WEIGHTS", limit)
    torch.testing.assert_close(moe(weights, experts, h), expected, atol=1e-12, rtol=0)


@pytest.mark.parametrize("count", [1, 50])
def test_each_way_gives_each_pair_its_experts_product(
    checkpoint: Path, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights, experts = ours(checkpoint, torch.float32)
    h = rows(count, torch.float32)
    chosen, _ = route(weights, experts, h)
    expected = looped(weights, h, chosen)
    # float32 sums of 64 terms near 1, added in another order.
    for way in (grouped, gathered):
        torch.testing.assert_close(way(weights, h, chosen), expected, atol=1e-5, rtol=0)
    # In slices: the last is shorter.
    whole = gathered(weights, h, chosen)
    monkeypatch.setattr(moe_module, "MAX_GATHERED_WEIGHTS", 3 * weights.gate_up[0].numel())
    torch.testing.assert_close(gathered(weights, h, chosen), whole, atol=1e-5, rtol=0)
    # Control: the pairs of a token exchanged.
    assert (gathered(weights, h, chosen.flip(1)) - expected).abs().max() > 1e-2


def test_the_correction_steers_the_choice_and_not_the_weights(checkpoint: Path) -> None:
    weights, experts = ours(checkpoint, torch.float32)
    h = rows(50, torch.float32)
    favoured = replace(
        weights, correction=torch.zeros(experts.routed).index_fill(0, torch.tensor([0, 1]), 9.0)
    )
    chosen, shares = route(favoured, replace(experts, normalise=False, scale=1.0), h)
    assert (chosen == 0).any(1).all()
    assert (chosen == 1).any(1).all()
    assert float(shares.max()) <= 1.0
    plain, _ = route(weights, experts, h)
    assert not (plain == 0).any(1).all()
