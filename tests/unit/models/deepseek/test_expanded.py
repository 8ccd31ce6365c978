"""Attention with keys and values expanded against transformers, which always expands."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.models.deepseek import expanded
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import MAX_ELEMENTS, Segment, StagedLatents
from tests.support import tiny_dsa

CPU = torch.device("cpu")
LENGTHS, SLOTS = (45, 9, 30), 100
# As in test_decoder: float64 but for norms and rope tables, and what float32 may come to.
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4}


@pytest.fixture(scope="module", params=["deepseek", "glm-shared"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An indexer that selects more tokens than the prompts have."""
    return tiny_dsa.make(request.param, tmp_path_factory.mktemp(request.param), index_topk=64)


def prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(tiny_dsa.VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def truth(checkpoint: Path, dtype: torch.dtype) -> Tensor:
    model = tiny_dsa.reference(checkpoint, dtype)
    with torch.inference_mode():
        return torch.cat([model(ids[None]).logits[0] for ids in prompts()])


@torch.inference_mode()
def logits(decoder: DsaDecoder, max_elements: int = MAX_ELEMENTS, ends: tuple[float, ...] = (1.0,)) -> Tensor:
    staged = StagedLatents(decoder.architecture, SLOTS, CPU, decoder.dtype, max_elements=max_elements)
    # What was never written must never be read.
    staged.pool.fill_(float("nan"))
    slots = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(2))[: sum(LENGTHS)].split(LENGTHS)
    found: list[list[Tensor]] = [[] for _ in LENGTHS]
    begins = [0] * len(LENGTHS)
    for share in ends:
        until = [int(share * length) for length in LENGTHS]
        parts = list(zip(prompts(), slots, begins, until, strict=True))
        staged.plan([Segment(each[:end], end - begin) for _, each, begin, end in parts])
        assert staged.selecting is not None
        assert torch.equal(staged.selecting, torch.empty(0, dtype=torch.int64))
        ids = torch.cat([ids[begin:end] for ids, _, begin, end in parts]).int()
        positions = torch.cat([torch.arange(begin, end) for *_, begin, end in parts]).int()
        hidden = decoder.tail(*decoder.body(ids, positions, staged)) @ decoder.weights.head.T
        for rows, of_forward in zip(
            found, hidden.split([end - begin for *_, begin, end in parts]), strict=True
        ):
            rows.append(of_forward)
        begins = until
    return torch.cat([torch.cat(rows) for rows in found])


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("ends", [(1.0,), (0.4, 1.0)])
def test_every_token_matches_transformers(
    checkpoint: Path, dtype: torch.dtype, ends: tuple[float, ...]
) -> None:
    found = logits(DsaDecoder(checkpoint, CPU, dtype), ends=ends)
    assert float((found - truth(checkpoint, dtype)).abs().max()) < BOUNDS[dtype]


def other_head(decoder: DsaDecoder) -> None:
    layers = tuple(
        replace(layer, attention=replace(layer.attention, from_latent=layer.attention.from_latent.roll(1, 0)))
        for layer in decoder.weights.layers
    )
    decoder.weights = replace(decoder.weights, layers=layers)


def absorbed_scale(decoder: DsaDecoder) -> None:
    """The scale of a head as wide as a cache row."""
    a = decoder.architecture
    decoder.architecture = replace(a, attention_scale=a.row_dim**-0.5)


@pytest.mark.parametrize("mutation", [other_head, absorbed_scale])
def test_control_a_wrong_expansion_is_told_apart(checkpoint: Path, mutation: Any) -> None:
    decoder = DsaDecoder(checkpoint, CPU, torch.float64)
    mutation(decoder)
    assert (
        float((logits(decoder) - truth(checkpoint, torch.float64)).abs().max()) > 100 * BOUNDS[torch.float32]
    )


def test_temporaries_are_bounded_and_change_nothing(
    checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = DsaDecoder(checkpoint, CPU, torch.float64)
    whole = logits(decoder)
    # One sequence at a time, one head at a time, and a few rows.
    monkeypatch.setattr(expanded, "GROUP_TOKENS", 40)
    a = decoder.architecture
    assert len(list(expanded.heads_at_once(a, 45, 100))) == a.heads
    # Products over fewer rows add in another order.
    torch.testing.assert_close(logits(decoder, max_elements=100), whole, atol=1e-12, rtol=0)
