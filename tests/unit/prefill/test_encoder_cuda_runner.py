"""The layout of an encoder's forwards for CUDA, which needs none."""

import numpy as np
import pytest

pytest.importorskip("triton", reason="the Triton language is not installed")

from hiscore.prefill.encoder_cuda_runner import pad_pairs
from hiscore.prefill.row_counts import MIN_ROWS
from hiscore.scoring.packing.pairs import PairRules
from tests.support.dense_pairs import forwards_of


@pytest.mark.parametrize("lengths", [[3], [1] * 5, [40, 1, 200], [2] * 127, [2] * 128, [1] * 300])
def test_products_have_enough_rows_and_pairs_their_own(lengths: list[int]) -> None:
    for rules in (PairRules(), PairRules(reads="last"), PairRules(reads="all")):
        (forward,) = forwards_of(lengths, 1_000, rules)
        scored, rows_of = pad_pairs(forward)
        assert min(len(scored), len(rows_of)) >= MIN_ROWS
        assert scored[: len(forward.scored_rows)].tolist() == forward.scored_rows.tolist()
        if rules.reads == "all":
            assert rows_of[: len(lengths)].tolist() == lengths
            assert rows_of.sum() == len(scored)  # every row belongs to a pair, or to the padding
            assert np.flatnonzero(rows_of[len(lengths) :]).tolist() in (
                [],
                [0],
                [*range(len(rows_of) - len(lengths))],
            )
