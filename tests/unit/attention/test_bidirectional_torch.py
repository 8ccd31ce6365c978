"""Attention in both directions in PyTorch against a dense mask."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from hiscore.attention import bidirectional_torch
from hiscore.attention.bidirectional import BidirectionalShape
from hiscore.attention.bidirectional_torch import TorchBidirectionalAttention
from hiscore.scoring.packing.pairs import PairRules
from tests.support.dense_pairs import dense_pairs, forwards_of, random_relative

HEADS, HEAD_DIM = 3, 8
LENGTHS = [5, 17, 5, 1, 40, 17, 2]


@pytest.mark.parametrize("reads", ["first", "last", "all"])
@pytest.mark.parametrize(
    ("reach", "terms"),
    [
        *[(None, ""), (4, ""), (None, "keys"), (None, "queries"), (None, "both"), (None, "biases")],
        *[(None, "causal"), (4, "causal")],
    ],
)
def test_attention_equals_the_dense_mask(
    reach: int | None, terms: str, reads: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bidirectional_torch, "MAX_WEIGHTS", 1_000)  # several batches of one length
    rows, relative = random_relative(HEADS, 10, HEAD_DIM, 64, terms)
    causal = terms == "causal"
    shape = BidirectionalShape(
        HEADS, HEAD_DIM, 0.3, (reach, reach), rows if terms and not causal else None, causal
    )
    attention = TorchBidirectionalAttention(shape)
    for forward in forwards_of(LENGTHS, 50, PairRules(reads=reads)):
        attention.plan(forward)
        qkv = torch.randn(len(forward.input_ids), 3 * HEADS * HEAD_DIM)
        expected = dense_pairs(forward, shape, 0, qkv, relative)
        # float32 sums of at most 40 weights: 1e-5 is ten times their rounding.
        torch.testing.assert_close(attention.attend(0, qkv, relative).double(), expected, atol=1e-5, rtol=0)
        scored = torch.from_numpy(forward.scored_rows)
        last = attention.attend(1, qkv, relative)[scored]
        torch.testing.assert_close(last.double(), expected[scored], atol=1e-5, rtol=0)


def test_control_another_reach_or_a_missing_term_fails() -> None:
    rows, relative = random_relative(HEADS, 10, HEAD_DIM, 64)
    _, biased = random_relative(HEADS, 10, HEAD_DIM, 64, "biases")
    (forward,) = forwards_of(LENGTHS, 1_000)
    qkv = torch.randn(len(forward.input_ids), 3 * HEADS * HEAD_DIM)
    near = BidirectionalShape(HEADS, HEAD_DIM, 0.3, (4, None))
    both = replace(near, reaches=(None, None), relative_rows=rows)
    wrongs = [
        (near, None, replace(near, reaches=(5, None)), None),
        (near, None, replace(near, causal=True), None),
        (both, relative, both, replace(relative, keys=None)),
        (both, relative, both, replace(relative, queries=None)),
        (both, relative, replace(both, relative_rows=rows.flip(0)), relative),
        (both, biased, both, replace(biased, biases=0.3 * biased.biases)),
    ]
    for shape, terms, wrong_shape, wrong_terms in wrongs:
        attention = TorchBidirectionalAttention(wrong_shape)
        attention.plan(forward)
        found = attention.attend(0, qkv, wrong_terms).double()
        with pytest.raises(AssertionError):
            torch.testing.assert_close(found, dense_pairs(forward, shape, 0, qkv, terms), atol=1e-3, rtol=0)
