"""Bytes that are planned for weights, against those of what is then loaded."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from hiscore.layers.fp8 import Fp8Linear
from hiscore.layers.scaled_fp8 import ScaledLinear
from hiscore.layers.weights import Linear, Weights
from hiscore.models import reader
from hiscore.models.config import read_architecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.loader import load_weights
from hiscore.models.planned_weights import planned_bytes
from hiscore.parallel.shard import Shard
from tests.support import quantised, tiny_models
from tests.support.quantised import SCHEMES
from tests.support.tiers import first_of
from tests.support.tiny_models import ATTENDING, FAMILIES
from tests.support.weights import held

CPU = torch.device("cpu")


def quantise(family: str, scheme: str, directory: Path, leave: str = "layers.1.self_attn") -> Path:
    dense = tiny_models.make(family, directory / "dense")
    return quantised.make(dense, SCHEMES[scheme](), directory / "quantised", (leave,))


def assert_as_planned(checkpoint: Path, ranks: int, fp8: bool = True) -> list[Weights]:
    a, _ = read_architecture(checkpoint)
    loads = [
        partial(load_weights, checkpoint, a, dtype=torch.bfloat16, fp8=fp8, shard=Shard(rank, ranks))
        for rank in range(ranks)
    ]
    loaded = [load(CPU) for load in loads]
    assert [planned_bytes(load) for load in loads] == [sum(held(weights).values()) for weights in loaded]
    return loaded


@pytest.mark.parametrize("ranks", first_of(4, 1, 2, others=pytest.mark.slow))
@pytest.mark.parametrize("scheme", [name for name in SCHEMES if "fp8" in name])
def test_a_rank_holds_the_bytes_that_are_planned(scheme: str, ranks: int, tmp_path: Path) -> None:
    assert_as_planned(quantise("llama", scheme, tmp_path), ranks)


def test_what_no_kernel_takes_is_planned_as_it_is_kept(tmp_path: Path) -> None:
    """A quarter of 96 neurons is no multiple of 16, and in blocks of 32 neither is half of them."""
    for scheme, ranks, kept in (
        ("fp8-channel", 2, Fp8Linear),
        ("fp8-channel", 4, Linear),
        ("fp8-block-32", 1, ScaledLinear),
        ("fp8-block-32", 2, Linear),
    ):
        for weights in assert_as_planned(quantise("llama", scheme, tmp_path / f"{scheme}-{ranks}"), ranks):
            assert [type(layer.mlp.down) for layer in weights.layers] == [kept] * 4


def test_control_a_plan_with_another_rule_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if there were a kernel for blocks of 16."""
    checkpoint = quantise("llama", "fp8-block-32", tmp_path)
    a, _ = read_architecture(checkpoint)
    load = partial(load_weights, checkpoint, a, dtype=torch.bfloat16, fp8=True, shard=Shard(0, 2))
    loaded = sum(held(load(CPU)).values())
    monkeypatch.setattr(reader, "COLUMNS", (16, 32))
    assert planned_bytes(load) < 0.95 * loaded


def test_what_is_read_with_weights_in_16_bits_is_planned_in_16_bits(tmp_path: Path) -> None:
    checkpoint = quantise("llama", "fp8-block-32", tmp_path, leave="layers.1.self_attn.k_proj")
    (weights,) = assert_as_planned(checkpoint, 1)
    assert [type(layer.qkv) for layer in weights.layers[:2]] == [ScaledLinear, Linear]


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("scheme", [None, "awq", "compressed-int4", "gptq-desc-act"])
def test_what_becomes_fp8_is_planned_so(scheme: str | None, ranks: int, tmp_path: Path) -> None:
    path = quantise("llama", scheme, tmp_path) if scheme else tiny_models.make("llama", tmp_path)
    for weights in assert_as_planned(path, ranks):
        assert {type(layer.output) for layer in weights.layers} == {Fp8Linear}


@pytest.mark.parametrize("family", first_of(*FAMILIES, others=pytest.mark.slow))
@pytest.mark.parametrize("ranks", [1, 2])
def test_every_family_is_planned_in_16_bits(family: str, ranks: int, tmp_path: Path) -> None:
    if ranks == 1 or family in ATTENDING:
        assert_as_planned(tiny_models.make(family, tmp_path), ranks, fp8=False)


@pytest.mark.parametrize("scheme", first_of(*SCHEMES, others=pytest.mark.slow))
def test_what_is_dequantised_is_planned_as_what_it_becomes(scheme: str, tmp_path: Path) -> None:
    assert_as_planned(quantise("llama-biased", scheme, tmp_path), 1, fp8=False)


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_is_planned(family: str, tmp_path: Path) -> None:
    assert_as_planned(
        quantise(family, "fp8-block-32", tmp_path, leave="none"), 2 if family in ATTENDING else 1
    )


def test_experts_in_mxfp4_are_planned(tmp_path: Path) -> None:
    dense = tiny_models.make("gpt-oss", tmp_path / "dense")
    assert_as_planned(quantised.make_mxfp4(dense, tmp_path / "quantised"), 2)


def test_a_checkpoint_that_cannot_be_loaded_cannot_be_planned(tmp_path: Path) -> None:
    checkpoint = tiny_models.make("llama", tmp_path)
    a, _ = read_architecture(checkpoint)
    with pytest.raises(UnsupportedCheckpoint, match="holds 9 tensors that a llama model does not have"):
        planned_bytes(partial(load_weights, checkpoint, replace(a, layers=3), dtype=torch.bfloat16))
