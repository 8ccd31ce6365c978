"""A prompt's bits depend on neither cuts, nor neighbours, nor what was found: a row's form follows its position.

Linear layers are computed row by row: on the CPU, products of other heights may add up in another order.
"""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.layers import weights
from hiscore.models.deepseek import mla
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from hiscore.models.deepseek.weights import MlaWeights
from tests.support import tiny_dsa

CPU = torch.device("cpu")
LENGTH, SLOTS = 150, 300


@pytest.fixture(autouse=True)
def rows_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    linear, absorbed, values = torch.nn.functional.linear, mla.absorbed, mla.values

    def linear_of(x: Tensor, *rest: Any) -> Tensor:
        return torch.cat([linear(row[None], *rest) for row in x])

    def absorbed_of(w: MlaWeights, new: mla.Projected) -> Tensor:
        return torch.cat([absorbed(w, new.of(torch.tensor([row]))) for row in range(len(new.nope))])

    def values_of(w: MlaWeights, attended: Tensor) -> Tensor:
        return torch.cat([values(w, row[None]) for row in attended])

    monkeypatch.setattr(weights, "linear", linear_of)
    monkeypatch.setattr(torch.nn.functional, "linear", linear_of)
    monkeypatch.setattr(mla, "absorbed", absorbed_of)
    monkeypatch.setattr(mla, "values", values_of)


# Selected tokens: more than the prompt has, and fewer than its first part has at any cut below.
@pytest.fixture(scope="module", params=[160, 70])
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DsaDecoder:
    checkpoint = tiny_dsa.make("glm-shared", tmp_path_factory.mktemp("bits"), index_topk=request.param)
    return DsaDecoder(checkpoint, CPU, torch.float32)


@torch.inference_mode()
def hidden(
    decoder: DsaDecoder,
    cuts: tuple[int, ...],
    company: tuple[int, ...] = (),
    **how: Any,
) -> Tensor:
    """Of a prompt in forwards that end at these tokens; beside each, another prompt's rows up to there."""
    generator = torch.Generator().manual_seed(1)
    prompts = torch.randint(tiny_dsa.VOCABULARY, (SLOTS,), generator=generator).split(
        [LENGTH, SLOTS - LENGTH]
    )
    slots = torch.randperm(SLOTS, generator=generator).split([LENGTH, SLOTS - LENGTH])
    staged = StagedLatents(decoder.architecture, SLOTS, CPU, decoder.dtype)
    found = []
    for index, (begin, end) in enumerate(pairwise((0, *cuts))):
        spans = [(begin, end)]
        if company:
            spans = [((0, *company)[index], company[index]), *spans]
        which = (1, 0) if company else (0,)
        staged.plan([Segment(slots[n][:b], b - a, **how) for n, (a, b) in zip(which, spans, strict=True)])
        ids = torch.cat([prompts[n][a:b] for n, (a, b) in zip(which, spans, strict=True)]).int()
        positions = torch.cat([torch.arange(a, b) for a, b in spans]).int()
        rows = decoder.tail(*decoder.body(ids, positions, staged))
        found.append(rows[len(rows) - (end - begin) :])
    return torch.cat(found)


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize(
    ("cuts", "company"),
    [
        pytest.param((110, LENGTH), (), id="few rows behind what was found"),
        pytest.param((32, 64, 149, LENGTH), (), id="cut"),
        pytest.param((64, LENGTH), (80, 81), id="beside another prompt"),
    ],
)
def test_neither_cuts_nor_neighbours_change_a_bit(
    decoder: DsaDecoder, cuts: tuple[int, ...], company: tuple[int, ...], full: bool
) -> None:
    assert torch.equal(hidden(decoder, cuts, company, full=full), hidden(decoder, (LENGTH,), full=full))


def test_control_the_other_form_has_other_bits(decoder: DsaDecoder) -> None:
    expanded, absorbed = (hidden(decoder, (LENGTH,), absorbed=absorbs) for absorbs in (False, True))
    assert not torch.equal(expanded[:70], absorbed[:70])
    # And of what is seen no token is missing: as between any two float32 implementations here.
    torch.testing.assert_close(expanded, absorbed, atol=1e-4, rtol=0)
