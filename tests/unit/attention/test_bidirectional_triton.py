"""The kernel of attention in both directions against a dense mask; without a GPU in Triton's interpreter."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.attention.bidirectional import BidirectionalShape, RelativeProjections
from hiscore.attention.bidirectional_triton import TritonBidirectionalAttention
from hiscore.attention.metadata import Forward
from hiscore.attention.tile_inputs import max_tiles
from hiscore.prefill.encoder_cuda_runner import EncoderLayout
from hiscore.scoring.packing.pairs import PairRules
from tests.support.dense_pairs import dense_pairs, forwards_of, random_relative
from tests.support.layers import DEVICE, random

LENGTHS = [5, 33, 64, 1, 80, 17, 2]


def prepare(attention: TritonBidirectionalAttention, forward: Forward, rows: int) -> None:
    layout = EncoderLayout(rows, max_tiles(rows, 1, attention.rows_per_tile))
    buffer = layout.pack(forward, attention.rows_per_tile)
    assert len(buffer) <= layout.size
    _, attention.inputs = layout.views(torch.from_numpy(buffer).to(DEVICE))


def on_device(relative: RelativeProjections) -> RelativeProjections:
    tables = (
        None if table is None else table.to(DEVICE)
        for table in (relative.keys, relative.queries, relative.biases)
    )
    return RelativeProjections(*tables)


@pytest.mark.parametrize(
    ("reach", "terms", "head_dim", "reads"),
    [
        pytest.param(None, "", 16, "first", id="plain"),
        pytest.param(7, "", 24, "all", id="near-and-odd"),
        pytest.param(None, "both", 16, "all", id="disentangled"),
        pytest.param(7, "", 16, "last", id="near-and-last"),
        pytest.param(None, "biases", 16, "all", id="biases"),
        pytest.param(None, "causal", 16, "all", id="causal"),
        pytest.param(7, "causal", 16, "last", id="causal-and-near", marks=pytest.mark.slow),
        pytest.param(40, "", 16, "first", id="farther-than-a-block", marks=pytest.mark.slow),
        pytest.param(None, "keys", 16, "first", id="keys-alone", marks=pytest.mark.slow),
        pytest.param(None, "queries", 16, "first", id="queries-alone", marks=pytest.mark.slow),
    ],
)
def test_attention_equals_the_dense_mask(reach: int | None, terms: str, head_dim: int, reads: Any) -> None:
    heads = 2
    rows, relative = random_relative(heads, 12, head_dim, 100, terms)
    causal = terms == "causal"
    tables = rows.to(DEVICE) if terms and not causal else None
    shape = BidirectionalShape(heads, head_dim, 0.3, (reach, reach), tables, causal)
    attention = TritonBidirectionalAttention(shape, torch.float32, multiprocessors=3)
    for forward in forwards_of(LENGTHS, 110, PairRules(reads=reads)):
        count = len(forward.input_ids)
        prepare(attention, forward, count + 5)  # with padding, whose keys and values are never to be read
        qkv = random(count + 5, 3 * heads * head_dim, seed=count)
        qkv[count:] = float("nan")
        out = attention.attend(0, qkv, on_device(relative))[:count]
        expected = dense_pairs(forward, shape, 0, qkv[:count], relative)
        # float32 sums of at most 80 weights: 1e-5 is ten times their rounding.
        torch.testing.assert_close(out.cpu().double(), expected, atol=1e-5, rtol=0)
        scored = torch.from_numpy(forward.scored_rows)
        last = attention.attend(1, qkv, on_device(relative)).cpu()[scored]
        torch.testing.assert_close(last.double(), expected[scored], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.parametrize("reach", [None, 40])
def test_no_bit_of_a_pair_depends_on_what_shares_its_forward(reach: int | None, fixed_sums: None) -> None:
    heads, head_dim = 2, 16
    shape = BidirectionalShape(heads, head_dim, 0.3, (reach, None))
    attention = TritonBidirectionalAttention(shape, torch.float32, multiprocessors=3)
    (together,) = forwards_of(LENGTHS, 1_000)
    qkv = random(len(together.input_ids), 3 * heads * head_dim)
    prepare(attention, together, len(qkv))
    whole = attention.attend(0, qkv, None)
    halved = TritonBidirectionalAttention(shape, torch.float32, multiprocessors=3)
    halved._launch = replace(halved._launch, n=halved._launch.n // 2)
    differs = False
    for begin, length in zip(np.cumsum([0, *LENGTHS]), LENGTHS, strict=False):
        (alone,) = forwards_of([length], 1_000)
        rows = qkv[begin : begin + length].contiguous()
        for each in (attention, halved):
            prepare(each, alone, length)
        found = attention.attend(0, rows, None)
        torch.testing.assert_close(found, whole[begin : begin + length], atol=0, rtol=0)
        differs |= not torch.equal(halved.attend(0, rows, None), found)
    # Control: keys in blocks of another size are added up in another order, in float32's rounding.
    assert differs
