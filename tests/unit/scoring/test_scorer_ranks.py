"""The scorer on several ranks against the scorer on one, for every family of decoders, in float32."""

import json
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.models.config import read_architecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.loader import load_weights
from hiscore.models.planned_weights import planned_bytes
from hiscore.models.sharding import of_rank
from hiscore.parallel.leader import Ranks
from hiscore.parallel.rank import RankError
from hiscore.parallel.shard import Shard
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.server.host import available_host_bytes
from hiscore.server.server_resources import Instance, ServerResources
from tests.support import quantised, rank_work, tiny_models
from tests.support.scoring import score
from tests.support.strategies import random_tokens
from tests.support.tiers import first_of
from tests.support.tiny_models import ATTENDING, FIRST, VOCABULARY, WITHOUT_CLASSIFIER
from tests.unit.scoring.test_long_labels import answers, request

pytestmark = pytest.mark.slow

# Sums over ranks add in another order than one product: what the contract allows between batches of one call.
TOLERANCE = 2e-5
CPU = torch.device("cpu")
BUDGET = 64
"""Far less than the calls have: they are split over several forwards, through the pool of keys and values."""
CALLS = [random_tokens(np.random.default_rng(0), query, items, VOCABULARY) for query, items in (
    (13, [1, 7, 7, 0, 20, 3]),
    (0, [2, 1]),
    (70, [31, 90]),
    (6, []),
)]  # fmt: skip
OPTIONS = PLAIN, SOFTMAX = ScoreOptions(), ScoreOptions(apply_softmax=True, temperature=0.7)


@pytest.fixture(scope="module", params=first_of(2, 4))
def ranks(request: pytest.FixtureRequest, ranks_of: Callable[[int], Ranks]) -> Ranks:
    return ranks_of(request.param)


def compare(checkpoint: Path, ranks: Ranks) -> None:
    """Then again with queries from the prefix cache; a softmax does not know where they came from."""
    alone = load_decoder_scorer(checkpoint, "cpu", "float32", BUDGET)
    together = load_decoder_scorer(checkpoint, "cpu", "float32", BUDGET, leader=ranks)
    for options in (PLAIN, PLAIN, SOFTMAX):
        expected, found = score(alone, CALLS, options), score(together, CALLS, options)
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_allclose(other, one, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("family", first_of(*ATTENDING))
def test_scores_equal_those_of_one_rank(family: str, ranks: Ranks, tmp_path: Path) -> None:
    compare(tiny_models.make(family, tmp_path), ranks)


@pytest.mark.parametrize(
    "family", first_of(*[name for name in FIRST if name in ATTENDING and name not in WITHOUT_CLASSIFIER])
)
def test_so_do_those_of_classifiers(family: str, ranks: Ranks, tmp_path: Path) -> None:
    compare(tiny_models.make(family, tmp_path, labels=3), ranks)


def test_so_do_the_tokens_of_long_labels(ranks: Ranks, tmp_path: Path) -> None:
    """Each rank has a share of the vocabulary: logarithms, ranks and the likeliest are those of all shares."""
    checkpoint = tiny_models.make("llama", tmp_path)
    found = []
    for leader in (None, ranks):
        scorer = load_decoder_scorer(checkpoint, "cpu", "float32", BUDGET, leader=leader)
        asked = [
            request(scorer, call, [(3,), (3, 490), (260, 7, 499)], token_logprobs=4)
            for call in CALLS
            if call.items
        ]
        found.append([each.tokens for each in answers(scorer, *asked)])
    for alone, together in zip(*found, strict=True):
        np.testing.assert_allclose(together.logprobs, alone.logprobs, atol=TOLERANCE, rtol=0)
        np.testing.assert_allclose(together.top_logprobs, alone.top_logprobs, atol=TOLERANCE, rtol=0)
        assert together.ranks.tolist() == alone.ranks.tolist()
        assert together.top_ids.tolist() == alone.top_ids.tolist()


@pytest.mark.parametrize("scheme", first_of(*quantised.SCHEMES))
def test_so_do_those_of_quantised_checkpoints(scheme: str, ranks: Ranks, tmp_path: Path) -> None:
    dense = tiny_models.make("llama-biased", tmp_path / "dense")
    leave = ("layers.1.self_attn",)  # as one of the schemes' configs says
    compare(quantised.make(dense, quantised.SCHEMES[scheme](), tmp_path / "quantised", leave), ranks)


def test_so_do_those_of_experts_in_mxfp4(ranks: Ranks, tmp_path: Path) -> None:
    dense = tiny_models.make("gpt-oss", tmp_path / "dense")
    compare(quantised.make_mxfp4(dense, tmp_path / "quantised"), ranks)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
def test_so_do_those_of_a_vocabulary_that_ranks_have_unequal_shares_of(
    family: str, ranks: Ranks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_models, "SIZES", {**tiny_models.SIZES, "vocab_size": VOCABULARY + 3})
    assert (VOCABULARY + 3) % ranks.rank.shard.ranks
    compare(tiny_models.make(family, tmp_path), ranks)


@pytest.mark.parametrize("family", ["llama", "olmo2", "command-r-plus", "qwen3-moe"])
@pytest.mark.exhaustive
def test_without_one_ranks_part_of_the_sums_they_do_not(family: str, ranks: Ranks, tmp_path: Path) -> None:
    """The control: as if a rank's exchange had been left out."""
    checkpoint = tiny_models.make(family, tmp_path)
    last = ranks.rank.shard.ranks - 1
    ranks.do(partial(rank_work.add_nothing, which=last))
    try:
        with pytest.raises(AssertionError):
            compare(checkpoint, ranks)
    finally:
        ranks.do(rank_work.add_again)
    compare(checkpoint, ranks)


def test_a_rank_reads_and_holds_its_share_alone(ranks: Ranks, tmp_path: Path) -> None:
    """As the plan says, and no more than its part of everything but heads that several ranks have."""
    checkpoint = tiny_models.make("llama-biased", tmp_path)
    load_decoder_scorer(checkpoint, "cpu", "float32", BUDGET, leader=ranks)
    held = ranks.do(rank_work.weight_bytes_held)
    count, (a, _) = ranks.rank.shard.ranks, read_architecture(checkpoint)
    load = partial(load_weights, checkpoint, a, dtype=torch.float32)
    assert held == [planned_bytes(partial(load, shard=Shard(rank, count))) for rank in range(count)]
    twice = 2 * a.layers * a.kv_heads * a.head_dim * (a.hidden_size + 1) * 4 * (Shard(0, count).copies(2) - 1)
    assert abs(sum(held) - planned_bytes(load) - twice) < 0.02 * sum(held)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"num_attention_heads": 6, "num_key_value_heads": 6}, "num_attention_heads 6"),
        (
            {"num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 98},
            "intermediate_size 98",
        ),
    ],
)
def test_what_cannot_be_divided_is_refused_by_name(
    change: dict[str, int], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiny_models, "SIZES", {**tiny_models.SIZES, "hidden_size": 96, **change})
    checkpoint = tiny_models.make("llama", tmp_path)
    whole, _ = read_architecture(checkpoint)
    with pytest.raises(UnsupportedCheckpoint, match=f"TENSOR_PARALLEL is 4, .*{reason}"):
        of_rank(whole, Shard(0, 4))
    assert of_rank(whole, Shard(0, 1)) == whole


def test_a_start_that_does_not_fit_says_which_rank_lacks_what(ranks: Ranks, tmp_path: Path) -> None:
    checkpoint = tiny_models.make("llama", tmp_path)
    with pytest.raises(
        RankError, match=r"rank 0 of \d: host has .* GiB left, .* are needed: keys and values"
    ):
        load_decoder_scorer(checkpoint, "cpu", "float32", BUDGET, query_cache_bytes=2**44, leader=ranks)
    # The ranks go on: nothing had been allocated.
    compare(checkpoint, ranks)


def test_the_rank_named_is_one_that_has_no_room_beside_the_others(ranks: Ranks, tmp_path: Path) -> None:
    """On the CPU they share one memory, which has room for one such pool. The control: for all of less."""
    checkpoint = tiny_models.make("llama", tmp_path / "checkpoint")
    server = os.getpid()

    def start(share: float) -> dict[str, Any]:
        """Start with pools of a share of the free memory each; returns what has been claimed."""
        directory = tmp_path / str(share)
        directory.mkdir()
        resources = ServerResources.in_server(directory, "scorer", server, Instance(), False, server)
        pool = int(share * available_host_bytes())
        try:
            load_decoder_scorer(checkpoint, "cpu", "float32", BUDGET, pool, leader=ranks, resources=resources)
        finally:
            claims = claims_in(directory)
        return claims

    def claims_in(directory: Path) -> dict[str, Any]:
        """Lines by owner: all ranks claim for the process of the first."""
        ledger = json.loads((directory / f"memory-{server}.json").read_text())
        claims: dict[str, Any] = ledger["host"]["claims"][str(server)]
        return claims

    with pytest.raises(RankError) as refused:
        start(0.6)
    message = str(refused.value)
    found = re.match(r"rank (\d) of \d: .*host has .* left, .* are needed: keys and values", message)
    assert found, message
    claims = claims_in(tmp_path / "0.6")
    assert len(claims) == 1
    assert not any(owner.endswith(f"rank {found[1]}") for owner in claims)
    assert len(start(0.05)) == ranks.rank.shard.ranks
