"""Projections in fp8 against plain arithmetic, on the CPU, which can compute them but does not serve them."""

from pathlib import Path

import numpy as np
import pytest
import torch
from packaging import version

from hiscore.layers.fp8 import Fp8Linear, quantise
from hiscore.layers.weights import Linear
from hiscore.models.decoder import Decoder
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.prefill.runner import TorchRunner
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from tests.support.fp8 import EmulatedLinear, emulated_scorer, rounded
from tests.support.scoring import SOFTMAX, score, use_runner
from tests.support.strategies import random_tokens
from tests.support.tiny_models import ATTENDING, FIRST, SIZES, VOCABULARY, make

CPU = torch.device("cpu")


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def restored(x: torch.Tensor) -> torch.Tensor:
    found = quantise(x)
    assert (found.values.dtype, found.scales.dtype) == (torch.float8_e4m3fn, torch.float32)
    return found.values.double() * found.scales.double()


def test_rows_are_rounded_to_the_nearest_each_by_its_own_scale() -> None:
    x = random(200, 64, seed=1) * torch.logspace(-20, 20, 200)[:, None]
    found, peaks = restored(x), x.double().abs().amax(dim=1, keepdim=True)
    # 4 bits: half a step is 1/16 of the value, and at least 2^-10 of the scale; plus float32's rounding.
    bound = torch.maximum(x.double().abs() / 16, peaks / 448 / 1_024) * (1 + 1e-5)
    assert ((found - x.double()).abs() <= bound).all()
    # Only a value halfway between two numbers, to within float32's rounding, may go to the other one.
    assert (found - rounded(x)).abs().div(peaks).gt(1e-6).double().mean() < 1e-3
    torch.testing.assert_close(found.abs().amax(dim=1, keepdim=True), peaks, atol=0, rtol=1e-6)
    # The control: one scale for all the rows loses most of them.
    assert ((restored(x.flatten()[None]).view_as(x) - x.double()).abs() > bound).double().mean() > 0.5


def test_a_row_of_zeros_stays_one_and_what_is_not_finite_shows() -> None:
    x = random(4, 32, seed=2)
    x[0] = 0
    x[1, 3], x[2, 5] = float("nan"), float("inf")
    found = restored(x)
    assert (found[0] == 0).all()
    assert found[1].isnan().any()
    assert found[2].isnan().any()
    assert found[3].isfinite().all()


needs_rows_on_the_cpu = pytest.mark.skipif(
    version.parse(torch.__version__) < version.parse("2.13"),
    reason="before 2.13, torch scales fp8 products by row on CUDA devices alone",
)


@needs_rows_on_the_cpu
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_projection_equals_the_product_of_what_was_rounded(rows: int) -> None:
    weight, bias, x = random(48, 80, seed=3), random(48, seed=4), random(rows, 80, seed=5).bfloat16()
    for added in (None, bias.bfloat16()):
        found = Fp8Linear(quantise(weight), added)(quantise(x))
        expected = EmulatedLinear(Linear(weight, added))(x)
        # A step of bfloat16 for the product and one for the sum with a bias, where its rounding is a close call.
        torch.testing.assert_close(found, expected, atol=2**-6, rtol=2**-7)
    assert found.dtype == torch.bfloat16


@needs_rows_on_the_cpu
@pytest.mark.parametrize(
    "family", [*(name for name in FIRST if name in ATTENDING), "glm4", "olmo2", "cohere2"]
)
def test_a_decoder_in_fp8_equals_the_emulated_one(family: str, tmp_path: Path) -> None:
    """Every projection, from float32 weights; embedding, norms, attention and head are bfloat16's."""
    checkpoint = make(family, tmp_path)
    call = random_tokens(np.random.default_rng(6), 13, [1, 7, 0, 20, 3] * 4, VOCABULARY)
    scorer = load_decoder_scorer(checkpoint, "cpu", "bfloat16", 1_024, query_cache_bytes=0)
    (without,) = score(scorer, [call], SOFTMAX)
    slots = scorer.runner.pool.shape[1]
    use_runner(scorer, TorchRunner(Decoder(checkpoint, CPU, torch.bfloat16, fp8=True), slots))
    (expected,) = score(emulated_scorer(checkpoint), [call], SOFTMAX)
    # Where sums in float32 and in float64 differ, a step of 1/8 may turn the other way. Seen: 0 to 0.007.
    assert np.abs(score(scorer, [call], SOFTMAX)[0] - expected).mean() < 1e-2
    # The control: without fp8. Seen: 0.018 and more.
    assert np.abs(without - expected).mean() > 1.5e-2


def test_the_scorer_refuses_fp8_on_the_cpu_and_says_which_setting(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="DTYPE=fp8 needs a CUDA device"):
        load_decoder_scorer(make("llama", tmp_path), "cpu", "fp8")


def test_a_projection_of_odd_size_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "intermediate_size", 100)
    checkpoint = make("llama", tmp_path)
    Decoder(checkpoint, CPU, torch.bfloat16)
    with pytest.raises(UnsupportedCheckpoint, match=r"gate_proj.*\[200, 64\].*fp8 needs multiples of 16"):
        Decoder(checkpoint, CPU, torch.bfloat16, fp8=True)
