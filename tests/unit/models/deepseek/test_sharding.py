"""Weights of latent attention in fp8, whole and over ranks, which are processes with gloo between them."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from hiscore.layers import scaled_fp8
from hiscore.layers.fp8 import FP8
from hiscore.layers.scaled_fp8 import ScaledLinear
from hiscore.layers.weights import Experts, Linear, Mlp
from hiscore.models.deepseek.config import read_architecture
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.loader import load_weights
from hiscore.models.deepseek.weights import DsaWeights
from hiscore.parallel.leader import Ranks
from hiscore.parallel.shard import WHOLE, Shard
from tests.support import dsa_rank_work, published_dsa, tiny_dsa
from tests.support.tiers import first_of

pytestmark = pytest.mark.slow

CPU = torch.device("cpu")
IDS = torch.randint(tiny_dsa.VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))
# Heads and neurons of two ranks end where blocks end; those of four end inside them, at 64 columns and at 48 rows.
SIZES = {"v_head_dim": 64, "intermediate_size": 512, "moe_intermediate_size": 128}
# float32 sums in another order, over three layers of a residual stream near 1.
NEAR = 1e-4


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return published_dsa.make("deepseek-experts", tmp_path_factory.mktemp("sharded"), **SIZES)[0]


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Nothing is selected, neither experts nor, up to the top-k, tokens: small errors stay small."""
    every = {"n_group": 1, "topk_group": 1, "num_experts_per_tok": 8}
    return published_dsa.make("deepseek-experts", tmp_path_factory.mktemp("smooth"), **SIZES, **every)[0]


def weights(checkpoint: Path, keeps_fp8: bool, shard: Shard = WHOLE) -> DsaWeights:
    architecture, _ = read_architecture(checkpoint)
    return load_weights(checkpoint, architecture, CPU, torch.float32, keeps_fp8, shard)


def dense(projection: Any) -> Tensor:
    if isinstance(projection, Linear):
        return projection.weight
    return scaled_fp8.dequantise(projection.values, projection.scales)


def dense_experts(w: Experts) -> tuple[Tensor, Tensor]:
    assert w.gate_up_scales is not None
    assert w.down_scales is not None
    gate_up, down = (
        torch.stack([scaled_fp8.dequantise(one, scales[index]) for index, one in enumerate(values)])
        for values, scales in ((w.gate_up, w.gate_up_scales), (w.down, w.down_scales))
    )
    return gate_up, down


def test_what_is_stored_in_fp8_stays_so_with_the_same_values(published: Path) -> None:
    kept, truth = weights(published, True), weights(published, False)
    for mine, theirs in zip(kept.layers, truth.layers, strict=True):
        assert mine.indexer is not None
        assert theirs.indexer is not None
        pairs = [
            (mine.attention.q_up, theirs.attention.q_up),
            (mine.attention.down, theirs.attention.down),
            (mine.attention.output, theirs.attention.output),
            (mine.indexer.query, theirs.indexer.query),
            (mine.indexer.key, theirs.indexer.key),
        ]
        if isinstance(mine.mlp, Mlp):
            assert isinstance(theirs.mlp, Mlp)
            pairs += [(mine.mlp.gate_up, theirs.mlp.gate_up), (mine.mlp.down, theirs.mlp.down)]
        for found, expected in pairs:
            assert isinstance(found, ScaledLinear)
            assert found.values.dtype == FP8
            assert found.scales.powers_of_two
            assert torch.equal(dense(found), dense(expected))
            # Control: the scales the other way round.
            assert not torch.equal(found.values.float(), dense(expected))
        if isinstance(mine.mlp, Experts):
            assert isinstance(theirs.mlp, Experts)
            gate_up, down = dense_experts(mine.mlp)
            assert torch.equal(gate_up, theirs.mlp.gate_up)
            assert torch.equal(down, theirs.mlp.down)
        # Absorbed weights are dequantised: the latents' space is not that of blocks.
        assert torch.equal(mine.attention.to_latent, theirs.attention.to_latent)


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_rank_s_share_is_a_part_of_the_whole(published: Path, ranks: int) -> None:
    truth = weights(published, False)
    shares = [weights(published, True, Shard(rank, ranks)) for rank in range(ranks)]
    for index, whole in enumerate(truth.layers):
        parts = [share.layers[index] for share in shares]
        output = torch.cat([dense(part.attention.output) for part in parts], dim=1)
        assert torch.equal(output, dense(whole.attention.output))
        q_up = torch.cat([dense(part.attention.q_up) for part in parts])
        assert torch.equal(q_up, dense(whole.attention.q_up))
        assert torch.equal(torch.cat([part.attention.to_latent for part in parts]), whole.attention.to_latent)
        if isinstance(whole.mlp, Experts):
            experts = [part.mlp for part in parts if isinstance(part.mlp, Experts)]
            both = [dense_experts(each) for each in experts]
            assert torch.equal(torch.cat([each for each, _ in both]), whole.mlp.gate_up)
            assert torch.equal(torch.cat([each for _, each in both]), whole.mlp.down)
            assert [each.first for each in experts] == [8 // ranks * rank for rank in range(ranks)]
            check_mlp([each.shared for each in experts if each.shared], whole.mlp.shared)
        else:
            check_mlp([part.mlp for part in parts if isinstance(part.mlp, Mlp)], whole.mlp)
    assert torch.equal(torch.cat([share.embedding for share in shares]), truth.embedding)
    assert torch.equal(torch.cat([share.head for share in shares]), truth.head)


def check_mlp(parts: list[Mlp], whole: Mlp | None) -> None:
    assert whole is not None
    halves = [dense(part.gate_up).chunk(2) for part in parts]
    joined = torch.cat([gate for gate, _ in halves] + [up for _, up in halves])
    assert torch.equal(joined, dense(whole.gate_up))
    assert torch.equal(torch.cat([dense(part.down) for part in parts], dim=1), dense(whole.down))


@pytest.fixture(scope="module", params=first_of(2, 4))
def leader(request: pytest.FixtureRequest, ranks_of: Callable[[int], Ranks]) -> Ranks:
    return ranks_of(request.param)


def together(leader: Ranks, checkpoint: Path, keeps_fp8: bool, ids: Tensor) -> Tensor:
    leader.do(partial(dsa_rank_work.load, checkpoint=checkpoint, keeps_fp8=keeps_fp8))
    return cast(Tensor, leader.do(partial(dsa_rank_work.hidden, ids=ids.tolist())))


def test_ranks_compute_what_one_computes(leader: Ranks, published: Path) -> None:
    alone = DsaDecoder(published, CPU, torch.float32)
    expected = dsa_rank_work.hidden_of(alone, IDS)
    assert (together(leader, published, False, IDS) - expected).abs().max() < NEAR
    # Control: other tokens.
    assert (dsa_rank_work.hidden_of(alone, IDS.roll(1)) - expected).abs().max() > 1000 * NEAR


def test_they_do_so_in_fp8(leader: Ranks, smooth: Path) -> None:
    """A last bit decides on which side of a step of three bits an activation falls; the steps cost more."""
    ids = IDS[: tiny_dsa.TOP_K]
    exact = dsa_rank_work.hidden_of(DsaDecoder(smooth, CPU, torch.float32), ids)
    expected = dsa_rank_work.hidden_of(DsaDecoder(smooth, CPU, torch.float32, keeps_fp8=True), ids)
    steps = (expected - exact).pow(2).mean().sqrt()
    # 3% of each product's input, through weights that multiply a spread by 1.5, and a softmax, three layers long.
    assert 0 < steps < 0.3 * exact.std()
    assert (together(leader, smooth, True, ids) - expected).pow(2).mean().sqrt() < steps


def test_unrounded_activations_in_fp8_do_the_same(published: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With all that is selected: experts and tokens."""
    expected = dsa_rank_work.hidden_of(DsaDecoder(published, CPU, torch.float32), IDS)
    kept = DsaDecoder(published, CPU, torch.float32, keeps_fp8=True)
    assert (dsa_rank_work.hidden_of(kept, IDS) - expected).abs().max() > 1000 * NEAR
    monkeypatch.setattr(scaled_fp8, "multiply", lambda x, *weight: x @ scaled_fp8.dequantise(*weight).T)
    assert (dsa_rank_work.hidden_of(kept, IDS) - expected).abs().max() < NEAR
