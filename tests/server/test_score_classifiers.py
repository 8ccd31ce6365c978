"""Sequence classifiers through the whole chain and by ids: raw logits, softmax, sigmoid."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoConfig, AutoTokenizer
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput
from tritonclient.utils import InferenceServerException

from hiscore.launcher import Server
from tests.server.api import api_of, call
from tests.server.conftest import StartServer
from tests.server.wire import WAYS, Refused, score_texts, score_tokens
from tests.support import tiny_models, tiny_tokenizers
from tests.support.comparison import check, truth_of
from tests.support.strategies import Tokens

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

tokenizer_of = cache(AutoTokenizer.from_pretrained)

QUERY, ITEMS = "Is it a fruit? It is", [" an apple", "n't", "", " 19 hammers"]
OPTIONS = [{}, {"apply_softmax": True, "temperature": 0.7}]


@pytest.fixture(
    scope="module",
    params=[("qwen3", 1), ("gemma2", 3), ("llama-mean", 1)],
    ids=["one-logit", "three-logits", "both-ways"],
)
def columns(request: pytest.FixtureRequest) -> tuple[str, int]:
    return request.param


@pytest.fixture(scope="module")
def checkpoint(columns: tuple[str, int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    family, labels = columns
    directory = tiny_models.make(family, tmp_path_factory.mktemp(family), labels)
    tokenizer = tiny_tokenizers.train(tiny_tokenizers.qwen2(), 480)
    return tiny_tokenizers.save(tokenizer, directory)


@pytest.fixture(scope="module")
def classifier(start_server: StartServer, checkpoint: Path) -> Server:
    return start_server(checkpoint, query_cache_bytes=2**20)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("item_first", [False, True])
def test_texts_equal_transformers(
    way: str, item_first: bool, classifier: Server, checkpoint: Path, columns: tuple[str, int]
) -> None:
    tokenizer, truth = tokenizer_of(checkpoint), truth_of(checkpoint)
    whole = [tokenizer(item + QUERY if item_first else QUERY + item)["input_ids"] for item in ITEMS]
    for options in OPTIONS:
        answer = score_texts(
            classifier, QUERY, ITEMS, way=way, columns=columns[1], item_first=item_first, **options
        )
        check(answer.scores, truth.scores([], whole, **options))


@pytest.mark.parametrize("way", WAYS)
def test_ids_equal_transformers_whatever_the_last_one_is(
    way: str, classifier: Server, checkpoint: Path, columns: tuple[str, int]
) -> None:
    """Classifiers are read at the last token, pad or eos as it may be."""
    call = Tokens([1, 2, 0, 2], [[2], [1, 1], [0, 0, 2], [9, 0], []])
    for options in OPTIONS:
        answer = score_tokens(classifier, call, way=way, columns=columns[1], **options)
        check(answer.scores, truth_of(checkpoint).scores(call.query, call.items, **options))


def test_control_other_items_fail_the_same_check(
    classifier: Server, checkpoint: Path, columns: tuple[str, int]
) -> None:
    call = Tokens([1, 2, 0, 2], [[2], [1, 1], [0, 0, 2], [9, 0]])
    found = score_tokens(classifier, Tokens(call.query, call.items[::-1]), columns=columns[1])
    with pytest.raises(AssertionError):
        check(found.scores, truth_of(checkpoint).scores(call.query, call.items))


def test_classify_is_one_text_and_one_row_of_probabilities(
    classifier: Server, checkpoint: Path, columns: tuple[str, int]
) -> None:
    text = QUERY + ITEMS[0]
    ids = tokenizer_of(checkpoint)(text)["input_ids"]
    (expected,) = truth_of(checkpoint).scores([], [ids], apply_softmax=True)
    for name, way in WAYS.items():
        own = {"id": "42"} if name == "generate" else {}  # Triton's own
        found = way(classifier, "classify", {"text": [text]}, own)["probabilities"].ravel()
        np.testing.assert_allclose(found, expected, atol=2e-5, rtol=0)
    # The control: another text has others.
    other = WAYS["grpc"](classifier, "classify", {"text": [QUERY]}, {})["probabilities"].ravel()
    assert np.abs(other - expected).max() > 1e-3


def test_the_likeliest_labels_come_with_their_names(
    classifier: Server, checkpoint: Path, columns: tuple[str, int]
) -> None:
    text = InferInput("text", [1, 1], "BYTES")
    text.set_data_from_numpy(np.array([[QUERY]], np.object_))
    with InferenceServerClient(classifier.grpc_url) as client:
        probabilities = client.infer("classify", [text]).as_numpy("probabilities")[0]
        asked = InferRequestedOutput("probabilities", class_count=columns[1])
        (named,) = client.infer("classify", [text], outputs=[asked]).as_numpy("probabilities")
    names = AutoConfig.from_pretrained(checkpoint).id2label
    order = np.argsort(-probabilities)
    assert [each.decode().split(":")[1:] for each in named] == [[str(at), names[at]] for at in order]


def test_probabilities_are_of_one_item(classifier: Server) -> None:
    ids = InferInput("input_ids", [1, 5], "INT32")
    ids.set_data_from_numpy(np.array([[1, 0, 2, 0, 0]], np.int32))
    places = InferInput("delimiter_indices", [1, 3], "INT32")
    places.set_data_from_numpy(np.array([[1, 3, 4]], np.int32))
    labels = InferInput("label_token_ids", [1, 0], "INT32")
    labels.set_data_from_numpy(np.empty((1, 0), np.int32))
    with (
        InferenceServerClient(classifier.grpc_url) as client,
        pytest.raises(InferenceServerException, match="'probabilities' are of one item, not of 2"),
    ):
        client.infer("scorer", [ids, places, labels], outputs=[InferRequestedOutput("probabilities")])


def test_nims_route_asks_nims_reranker_by_its_own_template(
    classifier: Server, checkpoint: Path, columns: tuple[str, int], tmp_path: Path
) -> None:
    if columns[0] != "llama-mean":
        pytest.skip("another family")
    # This tokenizer names no token as the beginning of a text.
    texts = [f"question:{QUERY} \n \n passage:{item}" for item in ITEMS]
    expected = truth_of(checkpoint).scores([], tokenizer_of(checkpoint)(texts)["input_ids"])[:, 0]
    passages = [{"text": item} for item in ITEMS]
    with api_of(classifier, tmp_path / "api.log") as api:
        answer = call(api, "/v1/ranking", {"query": {"text": QUERY}, "passages": passages}).json
    found = {each["index"]: each["logit"] for each in answer["rankings"]}
    # A logit on the wire is of a float32 probability.
    np.testing.assert_allclose([found[index] for index in range(len(ITEMS))], expected, atol=1e-3)
    assert np.ptp(expected) > 0.1


def test_a_text_stands_for_query_and_item(classifier: Server) -> None:
    with pytest.raises(Refused, match="'text' was sent with 'query' or 'items'"):
        WAYS["grpc"](classifier, "tokenizer", {"text": ["a"], "items": ["b"]}, {})
