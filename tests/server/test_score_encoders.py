"""Encoders through the whole chain: pairs of texts and of ids to scores, like transformers one pair at a time."""

import json
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from hiscore.models.encoder_families import ENCODER_FAMILIES
from tests.server.api import api_of, call
from tests.server.conftest import StartServer
from tests.server.wire import WAYS, Refused, score_texts, score_tokens
from tests.support import tiny_encoders
from tests.support.comparison import check
from tests.support.pair_truth import PairTruth
from tests.support.published_tokenizers import CHARACTERS, precompiled
from tests.support.strategies import Tokens
from tests.support.truth import of_classifier

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

truth_of = cache(PairTruth)

QUERY = "Is this a fruit? Answer Yes or No."
ITEMS = ["an apple", "", "12 nails and a hammer", "Is this a fruit? [SEP]", "苹果 </s>"]
OPTIONS = [{}, {"apply_softmax": True, "temperature": 0.7}]
# A checkpoint of every family; the unit tests compare more of some.
SERVED = {
    "bert": 1, "roberta": 1, "xlm-roberta": 2, "camembert": 1, "electra": 3, "modernbert-mean": 5, "deberta-v3": 1,
    "distilbert": 2, "albert": 1, "mpnet": 1, "eurobert": 1, "new": 1,
}  # fmt: skip


@pytest.fixture(scope="module", params=SERVED)
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(name: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tiny_encoders.make(name, tmp_path_factory.mktemp(name), SERVED[name])
    if name == "deberta-v3":
        # As published, where transformers' class leaves out SentencePiece's map of characters.
        file = directory / "tokenizer.json"
        state = json.loads(file.read_text())
        state["normalizer"]["normalizers"].insert(0, precompiled(CHARACTERS))
        file.write_text(json.dumps(state))
    return directory


@pytest.fixture(scope="module")
def encoder(start_server: StartServer, checkpoint: Path) -> Server:
    """With a budget below the length of a long pair."""
    return start_server(checkpoint, max_batch_tokens=64)


def test_every_family_is_served() -> None:
    assert {tiny_encoders.ENCODERS[name].model_type for name in SERVED} == set(ENCODER_FAMILIES)


def expected(checkpoint: Path, query: str, items: list[str], **options: float) -> np.ndarray:
    rows = truth_of(checkpoint).scores(query, items) / options.get("temperature", 1.0)
    return of_classifier(rows, bool(options))


@pytest.mark.parametrize("way", WAYS)
def test_texts_equal_transformers(way: str, encoder: Server, checkpoint: Path, name: str) -> None:
    for query in (QUERY, ""):
        items = ITEMS if query else [item for item in ITEMS if item]
        for options in OPTIONS:
            answer = score_texts(encoder, query, items, way=way, columns=SERVED[name], **options)
            check(answer.scores, expected(checkpoint, query, items, **options))
            tokens = sum(len(truth_of(checkpoint).ids(query, item)) for item in items)
            assert (answer.prompt_tokens, answer.cached_tokens) == (tokens, 0)


def test_control_items_behind_the_query_as_one_text_fail_the_same_check(
    encoder: Server, checkpoint: Path, name: str
) -> None:
    answer = score_texts(encoder, "", [QUERY + item for item in ITEMS], columns=SERVED[name])
    with pytest.raises(AssertionError):
        check(answer.scores, expected(checkpoint, QUERY, ITEMS))


def test_ids_equal_transformers(encoder: Server, checkpoint: Path, name: str) -> None:
    call = Tokens([2, 5, 6, 3], [[7, 3], [1, 1, 8], [], [9] * 100])
    answer = score_tokens(encoder, call, columns=SERVED[name])
    check(answer.scores, truth_of(checkpoint).scores_of_ids(call.query, call.items))


def test_callers_at_once_get_their_own_scores_and_a_pair_too_long_is_refused_alone(
    encoder: Server, checkpoint: Path, name: str
) -> None:
    long = "apple " * 200
    calls = [
        (QUERY, ITEMS[:3]),
        ("a", [ITEMS[0], long]),
        ("Is it red?", ITEMS),
        (long, ["x"]),
        ("12", []),
    ] * 3

    def score(call: tuple[str, list[str]]) -> np.ndarray | Refused:
        try:
            return score_texts(encoder, *call, columns=SERVED[name]).scores
        except Refused as refused:
            return refused

    with ThreadPoolExecutor(8) as pool:
        for (query, items), found in zip(calls, pool.map(score, calls), strict=True):
            if long in (query, *items):
                assert isinstance(found, Refused)
                assert found.code == "INVALID_ARGUMENT"
                assert str(tiny_encoders.CONTEXT) in str(found)
                assert "query and item" in str(found)
            elif items:
                check(found, expected(checkpoint, query, items))
            else:
                assert found.shape == (0, SERVED[name])


def test_what_an_encoder_has_no_answer_to_is_refused(encoder: Server, name: str) -> None:
    with pytest.raises(Refused, match="this model is a classifier"):
        score_texts(encoder, QUERY, ITEMS, [" Yes"])
    if tiny_encoders.ENCODERS[name].has_types:
        with pytest.raises(Refused, match="'item_first' must be false: this model's token types") as raised:
            score_texts(encoder, QUERY, ITEMS, item_first=True)
        assert raised.value.code == "INVALID_ARGUMENT"
    else:
        assert score_texts(encoder, QUERY, ITEMS, columns=SERVED[name], item_first=True).scores.size


def test_decode_is_left_out_by_name(encoder: Server) -> None:
    assert "decode" not in encoder.models
    assert "has no head for tokens" in encoder.left_out["decode"]


def test_score_and_rerank_go_by_tokenizer_json(
    encoder: Server, checkpoint: Path, name: str, tmp_path: Path
) -> None:
    if SERVED[name] > 1:
        pytest.skip("a classifier of several labels has no relevance")
    documents = ["an\u00a0apple", "wait… an apple", "ＴＨＥ apple"]
    with api_of(encoder, tmp_path / "api.log") as api:
        results = json.loads(call(api, "/v1/rerank", {"query": QUERY, "documents": documents}).body)[
            "results"
        ]
    probabilities = {each["index"]: each["relevance_score"] for each in results}
    scores = score_texts(encoder, QUERY, documents, columns=1).scores[:, 0]
    # Rounded to float32 on the way, and by another kernel where other pairs are beside them.
    np.testing.assert_allclose([probabilities[at] for at in range(3)], 1 / (1 + np.exp(-scores)), rtol=1e-4)
    if name == "deberta-v3":
        # The control: transformers' class reads these texts in another way.
        assert np.abs(scores - expected(checkpoint, QUERY, documents)[:, 0]).max() > 1e-2
