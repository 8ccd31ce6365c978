"""Sequences are compared with the tokens that their prompts got first."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from perf.loadgen.analyzer_decode import Generation
from perf.loadgen.token_check import LEAD, FirstTokens
from perf.loadgen.window import WrongScores


def streams(count: int, tokens: int = 12, seed: int = 0) -> list[Generation]:
    rng = np.random.default_rng(seed)
    return [
        Generation(i, 0.0, 0.0, [1.0], [rng.integers(0, 1_000, tokens).tolist()], "length")
        for i in range(count)
    ]


def test_tokens_are_held_against_the_prompts_first_ones() -> None:
    first, found = FirstTokens(), streams(10)
    assert first.agreement("pool", found, 12) is None
    assert first.agreement("pool", found, 12) == 1
    # One that flips a token late agrees up to there.
    flipped = replace(found[0], tokens=[[*found[0].ids[: LEAD // 2], -1, *found[0].ids[LEAD // 2 + 1 :]]])
    assert first.agreement("pool", [flipped, *found[1:]], 12) == pytest.approx(0.95)
    with pytest.raises(WrongScores, match="agree with what they got first in 0%"):
        first.agreement("pool", [replace(s, tokens=o.tokens) for s, o in pairwise(found)], 12)
    assert first.agreement("another pool", streams(10, seed=1), 12) is None


def test_a_stream_of_another_length_fails() -> None:
    with pytest.raises(WrongScores, match="has 12 tokens, asked for 13"):
        FirstTokens().agreement("pool", streams(3), 13)


def test_prompts_that_get_the_same_tokens_prove_nothing() -> None:
    same = [replace(stream, tokens=streams(1)[0].tokens) for stream in streams(4)]
    with pytest.raises(WrongScores, match="would not show"):
        FirstTokens().agreement("pool", same, 12)


def test_sequences_that_differ_after_their_first_token_fail() -> None:
    first, found = FirstTokens(), streams(10)
    first.agreement("pool", found, 12)
    others = [replace(s, tokens=[[s.ids[0], *(-1 for _ in s.ids[1:])]]) for s in found]
    with pytest.raises(WrongScores, match="in 12% of the tokens"):
        first.agreement("pool", others, 12)
