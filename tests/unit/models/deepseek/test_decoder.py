"""The decoder with a lightning indexer against transformers' own: whole, in chunks, and token by token."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.layers.weights import Experts
from hiscore.models.deepseek import indexer, mla
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import MAX_ELEMENTS, Segment, StagedLatents
from hiscore.models.deepseek.weights import DsaLayerWeights
from tests.support import tiny_dsa
from tests.support.tiers import first_of

# float64 but for norms, rope tables and indexer, which both compute in float32 from values that agree to 1e-15.
EXACT = 1e-9
# What allowed differences in float32 may come to.
SINGLE = 1e-4
# The router's product is float32 at every dtype and adds in another order for another number of rows:
# transformers' own cached decode is 1.7e-6 away from its one-shot forward here, in float64.
ROUTED = 1e-5
CPU = torch.device("cpu")
LENGTHS = (45, 9, 1, 30)
SLOTS = 200


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    return cache(lambda name: tiny_dsa.make(name, tmp_path_factory.mktemp(name)))


@pytest.fixture(scope="module")
def truth(checkpoint: Callable[[str], Path]) -> Callable[..., Any]:
    return cache(lambda name, dtype: tiny_dsa.reference(checkpoint(name), dtype))


def prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(tiny_dsa.VOCABULARY, (length,), generator=generator) for length in LENGTHS]


def slots_of(sequences: list[Tensor]) -> list[Tensor]:
    """Slots in the pool, scattered and out of order as pages are."""
    shuffled = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(2))
    return list(shuffled[: sum(map(len, sequences))].split([len(ids) for ids in sequences]))


def run(
    decoder: DsaDecoder, staged: StagedLatents, parts: list[tuple[Tensor, Tensor, int, int]]
) -> list[Tensor]:
    """One forward over parts (ids, slots, start, end) of sequences; each part's logits."""
    staged.plan([Segment(slots[:end], end - start) for _, slots, start, end in parts])
    ids = torch.cat([ids[start:end] for ids, _, start, end in parts]).int()
    positions = torch.cat([torch.arange(start, end) for _, _, start, end in parts]).int()
    with torch.inference_mode():
        hidden = decoder.tail(*decoder.body(ids, positions, staged))
        logits = hidden @ decoder.weights.head.T
    return list(logits.split([end - start for *_, start, end in parts]))


def staged_for(decoder: DsaDecoder, max_elements: int = MAX_ELEMENTS) -> StagedLatents:
    staged = StagedLatents(decoder.architecture, SLOTS, CPU, decoder.dtype, max_elements=max_elements)
    # What was never written must never be read.
    staged.pool.fill_(float("nan"))
    staged.index_keys.fill_(float("nan"))
    return staged


def in_chunks(
    decoder: DsaDecoder, sequences: list[Tensor], chunk: int, max_elements: int = MAX_ELEMENTS
) -> list[Tensor]:
    """All sequences at once, `chunk` tokens of each in a forward; the logits of every token."""
    staged, slots = staged_for(decoder, max_elements), slots_of(sequences)
    found: list[list[Tensor]] = [[] for _ in sequences]
    for start in range(0, max(map(len, sequences)), chunk):
        alive = [index for index, ids in enumerate(sequences) if len(ids) > start]
        parts = [
            (sequences[index], slots[index], start, min(start + chunk, len(sequences[index])))
            for index in alive
        ]
        for index, logits in zip(alive, run(decoder, staged, parts), strict=True):
            found[index].append(logits)
    return [torch.cat(logits) for logits in found]


def one_shot(model: Any, sequences: list[Tensor]) -> list[Tensor]:
    with torch.inference_mode():
        return [model(ids[None]).logits[0] for ids in sequences]


def largest_error(found: list[Tensor], expected: list[Tensor]) -> float:
    return max(float((a - b).abs().max()) for a, b in zip(found, expected, strict=True))


def exact(name: str) -> float:
    return ROUTED if name.endswith("experts") else EXACT


@pytest.mark.parametrize("name", tiny_dsa.FAMILIES)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("chunk", first_of(7, 1, 64, others=pytest.mark.slow))
def test_every_token_matches_transformers(
    checkpoint: Any, truth: Any, name: str, dtype: torch.dtype, chunk: int
) -> None:
    """45 tokens at a top-k of 16: most rows leave tokens out. A chunk of 1 is decoding token by token."""
    decoder = DsaDecoder(checkpoint(name), CPU, dtype)
    expected = one_shot(truth(name, dtype), prompts())
    assert largest_error(in_chunks(decoder, prompts(), chunk), expected) < (
        exact(name) if dtype == torch.float64 else SINGLE
    )


def test_the_tokens_beyond_top_k_matter(checkpoint: Any, truth: Any) -> None:
    """Control: attending to everything agrees up to the top-k and nowhere behind it."""
    decoder = DsaDecoder(checkpoint("deepseek"), CPU, torch.float64)
    ids = prompts()[0]
    staged = staged_for(decoder)
    staged.plan([Segment(torch.arange(len(ids)), len(ids), full=True)])
    with torch.inference_mode():
        hidden = decoder.tail(*decoder.body(ids.int(), torch.arange(len(ids)).int(), staged))
    (expected,) = one_shot(truth("deepseek", torch.float64), [ids])
    error = (hidden @ decoder.weights.head.T - expected).abs().amax(dim=1)
    assert error[: tiny_dsa.TOP_K].max() < EXACT
    assert error[tiny_dsa.TOP_K :].min() > 1e-3


def swapped_pairs(decoder: DsaDecoder) -> None:
    a = decoder.architecture
    decoder.architecture = replace(a, indexer=replace(a.indexer, interleaved=not a.indexer.interleaved))


def unabsorbed_scale(decoder: DsaDecoder) -> None:
    a = decoder.architecture
    decoder.architecture = replace(a, attention_scale=a.row_dim**-0.5)


def scale_without_yarn(decoder: DsaDecoder) -> None:
    a = decoder.architecture
    decoder.architecture = replace(a, attention_scale=(a.nope_dim + a.rope_dim) ** -0.5)


def one_group(decoder: DsaDecoder) -> None:
    def changed(layer: DsaLayerWeights) -> DsaLayerWeights:
        if not isinstance(layer.mlp, Experts):
            return layer
        routing = replace(layer.mlp.routing, groups_per_token=layer.mlp.routing.groups)
        return replace(layer, mlp=replace(layer.mlp, routing=routing))

    layers = tuple(map(changed, decoder.weights.layers))
    decoder.weights = replace(decoder.weights, layers=layers)


def smaller_top_k(decoder: DsaDecoder) -> None:
    a = decoder.architecture
    decoder.architecture = replace(a, indexer=replace(a.indexer, top_k=a.indexer.top_k - 1))


@pytest.mark.parametrize(
    ("name", "mutation"),
    [
        ("deepseek", swapped_pairs),
        ("glm", swapped_pairs),
        ("deepseek", unabsorbed_scale),
        ("deepseek", scale_without_yarn),
        ("deepseek-experts", one_group),
        ("deepseek", smaller_top_k),
    ],
)
def test_a_wrong_decoder_is_told_apart(
    checkpoint: Any, truth: Any, name: str, mutation: Callable[[DsaDecoder], None]
) -> None:
    """Controls: each of these is a plausible misreading, and far outside both bounds."""
    decoder = DsaDecoder(checkpoint(name), CPU, torch.float64)
    mutation(decoder)
    expected = one_shot(truth(name, torch.float64), prompts())
    assert largest_error(in_chunks(decoder, prompts(), 7), expected) > 10 * SINGLE


def test_inner_norms_have_their_epsilon(checkpoint: Any, truth: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the config's epsilon there is outside the bound, if not far."""
    monkeypatch.setattr(mla, "LATENT_EPS", tiny_dsa.SIZES["rms_norm_eps"])
    decoder = DsaDecoder(checkpoint("glm"), CPU, torch.float64)
    expected = one_shot(truth("glm", torch.float64), prompts())
    assert largest_error(in_chunks(decoder, prompts(), 7), expected) > 100 * EXACT


def test_a_shared_layer_uses_the_last_selection_before_it(checkpoint: Any, truth: Any) -> None:
    """Control: with the selection of an earlier layer instead, rows beyond the top-k differ."""

    class Stale(StagedLatents):
        def attend(self, layer: int, q: Tensor, index: indexer.IndexQuery | None) -> Tensor:
            return super().attend(layer, q, index if layer == 0 else None)

    decoder = DsaDecoder(checkpoint("glm-alternating"), CPU, torch.float64)
    ids = prompts()[0]
    staged = Stale(decoder.architecture, SLOTS, CPU, torch.float64)
    (found,) = run(decoder, staged, [(ids, torch.arange(len(ids)), 0, len(ids))])
    (expected,) = one_shot(truth("glm-alternating", torch.float64), [ids])
    assert largest_error([found[: tiny_dsa.TOP_K]], [expected[: tiny_dsa.TOP_K]]) < EXACT
    assert largest_error([found], [expected]) > 10 * SINGLE


def test_temporaries_are_bounded_and_change_nothing(checkpoint: Any) -> None:
    decoder = DsaDecoder(checkpoint("glm-shared"), CPU, torch.float64)
    whole = in_chunks(decoder, prompts(), 64)
    staged = staged_for(decoder, max_elements=2_000)
    staged.plan([Segment(torch.arange(45), 45)])
    assert len(staged._pieces) > 5
    # Products over fewer rows add in another order.
    assert largest_error(in_chunks(decoder, prompts(), 64, max_elements=2_000), whole) < 1e-12


def test_bfloat16_follows_float32(checkpoint: Any) -> None:
    """8 bits of precision over 4 layers, logits of spread 1.5: a dropped step would miss by the spread itself.

    For the median token: rounding may tip one between two experts of nearly the same score, in transformers too.
    """
    single = DsaDecoder(checkpoint("glm-experts"), CPU, torch.float32)
    half = DsaDecoder(checkpoint("glm-experts"), CPU, torch.bfloat16)
    ids = [prompts()[0][: tiny_dsa.TOP_K]]
    expected = in_chunks(single, ids, 64)[0]
    errors = (in_chunks(half, ids, 64)[0].float() - expected).pow(2).mean(dim=1).sqrt()
    assert errors.median() < 0.1 * expected.std()
