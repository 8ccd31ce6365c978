"""A label that an item has twice fails its own call, without holding up the others or the GPU."""

from typing import Any

import numpy as np
import pytest

from hiscore.errors import RequestError
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.readout_plan import ReadoutPlan
from hiscore.scoring.scorer import Scorer
from tests.support.strategies import random_tokens
from tests.support.tiny_models import VOCABULARY


def call(*own: list[int]) -> ScoreRequest:
    tokens = random_tokens(np.random.default_rng(0), 9, [3] * len(own), VOCABULARY)
    options = ScoreOptions(apply_softmax=True, label_counts=tuple(map(len, own)))
    return ScoreRequest.of(tokens.prompt(), np.concatenate(own).astype(np.int32), options)


@pytest.fixture(scope="module")
def scorer(checkpoints: Any) -> Scorer:
    return load_decoder_scorer(checkpoints("llama")[0], "cpu", "float32", 4_096)


def test_a_label_given_twice_fails_its_own_call_alone(scorer: Scorer) -> None:
    good, bad = call([1, 2], [3, 4, 5]), call([1, 2], [3, 4, 3])
    answers, _ = scorer.score([good, bad, good])
    alone, _ = scorer.score([good])
    assert isinstance(answers[1], RequestError)
    assert answers[1].message == "'label_token_ids' holds 3 more than once for item 1"
    for answer in (answers[0], answers[2]):
        # Products of more rows may be added up in another order (torch 2.11): a few units in the last place.
        np.testing.assert_allclose(answer.scores, alone[0].scores, rtol=1e-5)


def test_a_part_names_the_item_by_its_place_in_the_whole_call(scorer: Scorer) -> None:
    request = call([1], [2], [3, 4], [5, 6, 5])
    prompt = request.prompt
    middle = request.part(prompt.part(1, 4), 1)
    last = middle.part(middle.prompt.part(2, 3), 2)
    (answer,), _ = scorer.score([last])
    assert isinstance(answer, RequestError)
    assert answer.message.endswith("for item 3")


def test_labels_are_read_before_the_wait_for_the_gpu(scorer: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
    done = []

    reader = ReadoutPlan.reader

    def noted(plan: ReadoutPlan) -> Any:
        done.append("prepare")
        return reader(plan)

    monkeypatch.setattr(ReadoutPlan, "reader", noted)
    pending = scorer.submit([call([1, 2]), call([3, 3])])
    pending._wait = lambda: done.append("wait")
    pending.result()
    assert done == ["prepare", "prepare", "wait"]
