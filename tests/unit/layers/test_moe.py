"""Experts against transformers' own blocks on the same rows, and the kernels against PyTorch.

Without a GPU the kernels run in Triton's interpreter, on the CPU.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from hiscore.layers.moe import looped, moe, route
from hiscore.layers.weights import Experts, Linear, Mlp
from hiscore.models.decoder import Decoder
from hiscore.models.deepseek.decoder import DsaDecoder
from tests.support import tiny_dsa, tiny_models
from tests.support.layers import DEVICE, experts_of, random
from tests.support.tiers import first_of
from tests.support.truth import Truth

LAYER = 2
CPU = torch.device("cpu")
ACTIVATIONS = ["silu", "gelu_pytorch_tanh", "clamped_swiglu"]


@pytest.fixture(scope="module", params=["deepseek-experts", "glm-experts"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_dsa.make(request.param, tmp_path_factory.mktemp(request.param))


def ours(checkpoint: Path, dtype: torch.dtype) -> Experts:
    weights = DsaDecoder(checkpoint, CPU, dtype).weights.layers[LAYER].mlp
    assert isinstance(weights, Experts)
    return weights


def rows(count: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(count)
    return torch.randn(count, tiny_dsa.SIZES["hidden_size"], generator=generator, dtype=dtype)


@pytest.mark.parametrize("count", [1, 50])
def test_routing_by_sigmoid_equals_transformers(checkpoint: Path, count: int) -> None:
    """Routing is float32 in both, of the same operands and so with the same bits: float64 shows in full."""
    weights = ours(checkpoint, torch.float64)
    # A copy is aligned as transformers' is: a CPU's library may add up in another order otherwise.
    weights = replace(weights, router=weights.router.clone())
    h = rows(count, torch.float64)
    block = tiny_dsa.reference(checkpoint, torch.float64).model.layers[LAYER].mlp
    with torch.inference_mode():
        torch.testing.assert_close(moe(weights, h), block(h), atol=1e-12, rtol=0)


@pytest.mark.parametrize("family", ["qwen3-moe", "qwen3-moe-plain", "mixtral", "gpt-oss", "qwen3-hybrid-moe"])
def test_routing_by_softmax_equals_transformers(family: str, tmp_path: Path) -> None:
    path = tiny_models.make(family, tmp_path)
    weights = Decoder(path, CPU, torch.float32).weights.layers[LAYER].mlp
    assert isinstance(weights, Experts)
    h = rows(50, torch.float32)
    block: Any = Truth(path).model.model.layers[LAYER].mlp
    with torch.inference_mode():
        expected = block(h[None])
        expected = (expected[0] if isinstance(expected, tuple) else expected)[0]
        torch.testing.assert_close(moe(weights, h), expected, atol=1e-5, rtol=1e-5)
        # Control: weights that are normalised where they should not be, or the other way round.
        other = replace(weights.routing, normalise=not weights.routing.normalise)
        assert (moe(replace(weights, routing=other), h) - expected).abs().max() > 1e-3


def experts(
    activation: str,
    biased: bool,
    count: int = 5,
    width: int = 24,
    hidden: int = 40,
    dtype: Any = torch.float32,
) -> Experts:
    """Random experts, of which a token gets two. Sizes are no powers of two, so that every mask is used."""
    scale = hidden**-0.5
    router = random(count, hidden, seed=1) * scale
    gate_up = (3 * random(count, 2 * width, hidden, seed=3) * scale).to(dtype)
    down = (random(count, hidden, width, seed=5) * width**-0.5).to(dtype)
    biases = {
        "router_bias": random(count, seed=2),
        "gate_up_bias": random(count, 2 * width, seed=4).to(dtype),
        "down_bias": random(count, hidden, seed=6).to(dtype),
    }
    return experts_of(router, gate_up, down, activation=activation, **(biases if biased else {}))


@pytest.mark.parametrize("biased", [True, False])
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", first_of(1, 0, 70, others=pytest.mark.slow))
def test_the_kernels_equal_pytorch(count: int, activation: str, biased: bool) -> None:
    pytest.importorskip("triton", reason="the Triton language is not installed")
    from hiscore.layers import moe_triton

    weights, h = experts(activation, biased), random(count, 40, seed=7)
    # float32 sums of at most 40 terms near 1, added in another order.
    near = {"atol": 1e-5, "rtol": 1e-5}
    logits = linear(h, weights.router, weights.router_bias)
    torch.testing.assert_close(moe_triton.router_logits(weights, h), logits, **near)
    chosen, _ = route(weights, logits)
    found = moe_triton.expert_outputs(weights, h, chosen)
    torch.testing.assert_close(found, looped(weights, h, chosen), **near)
    torch.testing.assert_close(moe_triton.moe(weights, h), moe(weights, h), **near)
    # A shared expert with a gate, whose logit is the router's last; biases are of other families.
    pair = Mlp(Linear(random(8, 40, seed=8)), Linear(random(40, 4, seed=9)))
    router = torch.cat((weights.router, random(1, 40, seed=10)))
    gated = replace(weights, router=router, router_bias=None, shared=pair, gates_shared=True)
    torch.testing.assert_close(moe_triton.moe(gated, h), moe(gated, h), **near)
    if count:
        assert (moe(gated, h) - moe(replace(weights, router_bias=None, shared=pair), h)).abs().max() > 1e-2
        # Control: the pairs of a token exchanged.
        wrong = moe_triton.expert_outputs(weights, h, chosen.flip(1))
        assert (wrong - found).abs().max() > 1e-2


@pytest.mark.slow
def test_an_expert_that_all_or_none_choose_is_no_exception() -> None:
    pytest.importorskip("triton", reason="the Triton language is not installed")
    from hiscore.layers import moe_triton

    weights, h = experts("silu", False), random(40, 40, seed=7)
    for first, second in ((0, 4), (3, 1), (2, 3)):
        chosen = torch.tensor([first, second], device=DEVICE).expand(40, 2)
        found = moe_triton.expert_outputs(weights, h, chosen)
        torch.testing.assert_close(found, looped(weights, h, chosen), atol=1e-5, rtol=1e-5)
