"""The Python SDK against the real server: both clients, chunks, and what failures become."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from hiscore.launcher import Server
from hiscore_client import (
    ChunkLimits,
    ScoreClient,
)
from tests.server.counters import counted
from tests.support.comparison import INVARIANCE, check, truth_of
from tests.support.strategies import random_tokens
from tests.support.timeouts import TIMEOUT_S
from tests.support.tiny_models import VOCABULARY

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 77, 401]
QUERY, ITEMS = "Is this a fruit? It is", [" an apple", "n't", "", " 19 hammers"]


def text_truth(checkpoint: Path, **options: float) -> np.ndarray:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    whole = [tokenizer(QUERY + item)["input_ids"] for item in ITEMS]
    labels = [tokenizer(label)["input_ids"][0] for label in (" Yes", " No")]
    return truth_of(checkpoint).scores([], whole, labels, **options)


def test_texts_and_ids_equal_transformers(lm: Server, tiny_lm: Path) -> None:
    call = random_tokens(np.random.default_rng(1), 30, [3, 0, 12], VOCABULARY)
    with ScoreClient(lm.grpc_url) as client:
        client.wait_ready(TIMEOUT_S, ["score", "scorer", "tokenizer"])
        texts = client.score(QUERY, ITEMS, labels=[" Yes", " No"], apply_softmax=True, temperature=0.5)
        ids = client.score_ids(call.query, call.items, LABELS)
        nothing = client.score(QUERY, [], labels=[" Yes"])
    check(texts.scores, text_truth(tiny_lm, apply_softmax=True, temperature=0.5))
    check(ids.scores, truth_of(tiny_lm).scores(call.query, call.items, LABELS), over_vocabulary=True)
    assert ids.usage.prompt_tokens == 45
    assert nothing.scores.shape == (0, 1)


def test_a_call_in_chunks_equals_one_request(lm: Server) -> None:
    call = random_tokens(np.random.default_rng(2), 40, [3, 0, 12, 5] * 25, VOCABULARY)
    items = [f" item {place}" for place in range(50)]
    with (
        ScoreClient(lm.grpc_url) as whole,
        ScoreClient(lm.grpc_url, limits=ChunkLimits(max_items=7)) as parts,
    ):
        with counted(lm, {("scorer", "nv_inference_request_success"): 15}) as risen:
            found = parts.score_ids(call.query, call.items, LABELS, apply_softmax=True)
        expected = whole.score_ids(call.query, call.items, LABELS, apply_softmax=True)
        np.testing.assert_allclose(found.scores, expected.scores, atol=INVARIANCE, rtol=0)
        assert risen["scorer", "nv_inference_request_success"] == 15
        found = parts.score(QUERY, items, label_token_ids=LABELS, apply_softmax=True)
        expected = whole.score(QUERY, items, label_token_ids=LABELS, apply_softmax=True)
        np.testing.assert_allclose(found.scores, expected.scores, atol=INVARIANCE, rtol=0)
        # Control: the order can be seen.
        assert np.ptp(expected.scores[:, 0]) > 100 * INVARIANCE


def test_the_first_example_of_the_readme_is_right(server: Server) -> None:
    readme = (Path(__file__).resolve().parents[2] / "README.md").read_text()
    found = re.search(r'"query": (".*?"), "items": (\[.*?\]), "labels": (\[.*?\])', readme)
    assert found
    query, items, labels = map(json.loads, found.groups())
    assert labels == [" fruit", " tool"]
    with ScoreClient(server.grpc_url) as client:
        apple, hammer = client.score(query, items, labels=labels, apply_softmax=True).scores
        assert apple[0] > 0.8 > 0.2 > hammer[0]
        # The control: asked in a way that does not end where the answer begins, it calls an apple no fruit.
        old = client.score(
            "Is this a fruit? ", ["apple", "hammer"], labels=[" Yes", " No"], apply_softmax=True
        )
        assert old.scores[0, 0] < 0.5
