"""Attention with keys and values expanded against transformers, which always expands."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.models.deepseek import expanded
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import MAX_ELEMENTS, Segment
from tests.support import tiny_dsa
from tests.unit.models.deepseek.test_decoder import LENGTHS, in_chunks, one_shot, prompts, staged_for

CPU = torch.device("cpu")
# As in test_decoder: float64 but for norms and rope tables, and what float32 may come to.
BOUNDS = {torch.float64: 1e-9, torch.float32: 1e-4}


@pytest.fixture(scope="module", params=["deepseek", "glm-shared"])
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An indexer that selects more tokens than the prompts have."""
    return tiny_dsa.make(request.param, tmp_path_factory.mktemp(request.param), index_topk=64)


def truth(checkpoint: Path, dtype: torch.dtype) -> Tensor:
    return torch.cat(one_shot(tiny_dsa.reference(checkpoint, dtype), prompts()))


def logits(decoder: DsaDecoder, max_elements: int = MAX_ELEMENTS, chunk: int = max(LENGTHS)) -> Tensor:
    return torch.cat(in_chunks(decoder, prompts(), chunk, max_elements))


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("chunk", [max(LENGTHS), 18])
def test_every_token_matches_transformers(checkpoint: Path, dtype: torch.dtype, chunk: int) -> None:
    decoder = DsaDecoder(checkpoint, CPU, dtype)
    assert float((logits(decoder, chunk=chunk) - truth(checkpoint, dtype)).abs().max()) < BOUNDS[dtype]
    # No row selects, at any cut.
    staged = staged_for(decoder)
    for end in (chunk, max(LENGTHS)):
        staged.plan([Segment(torch.arange(end), min(end, chunk))])
        assert staged.selecting is not None
        assert torch.equal(staged.selecting, torch.empty(0, dtype=torch.int64))


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
