"""Labels of their own for each item, through the whole chain: SDK, tokenizer, scorer, large calls."""

import numpy as np
import pytest
from transformers import AutoTokenizer

from hiscore.launcher import Server
from hiscore_client import ChunkLimits, ScoreClient

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

QUERY, ITEMS = "Which is it? ", ["an apple", "a hammer", "12 nails"]
IDS = [[7, 402, 31], [402, 8], [9, 10, 11, 12]]
# Items of one forward and of several calls differ by what a forward's shape does to float32.
BOUND = 2e-5


@pytest.mark.parametrize("apply_softmax", [True, False])
@pytest.mark.parametrize("max_items", [2, 100])
def test_items_score_over_their_own_labels(lm: Server, apply_softmax: bool, max_items: int) -> None:
    counts, flat = [len(own) for own in IDS], [label for own in IDS for label in own]
    ids_of = AutoTokenizer.from_pretrained(lm.checkpoint)
    with ScoreClient(lm.grpc_url, limits=ChunkLimits(max_items=max_items)) as client:
        scores = client.score(
            QUERY, ITEMS, label_token_ids=flat, label_counts=counts, apply_softmax=apply_softmax
        ).scores
        by_ids = client.score_ids(
            ids_of(QUERY)["input_ids"],
            [ids_of(item)["input_ids"] for item in ITEMS],
            flat,
            label_counts=np.array(counts),
            apply_softmax=apply_softmax,
        ).scores
        assert scores.shape == by_ids.shape == (3, 4)
        for index, own in enumerate(IDS):
            alone = client.score(
                QUERY, [ITEMS[index]], label_token_ids=own, apply_softmax=apply_softmax
            ).scores
            np.testing.assert_allclose(scores[index, : len(own)], alone[0], atol=BOUND, rtol=0)
            assert (scores[index, len(own) :] == 0).all()
            if apply_softmax:
                assert scores[index].sum() == pytest.approx(1, abs=1e-6)
