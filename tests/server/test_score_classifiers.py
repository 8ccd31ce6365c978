"""Sequence classifiers through the whole chain and by ids: raw logits, softmax, sigmoid."""

from functools import cache
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from hiscore.launcher import Server
from tests.server.conftest import StartServer
from tests.server.wire import WAYS, score_texts, score_tokens
from tests.support import tiny_models, tiny_tokenizers
from tests.support.comparison import check, truth_of
from tests.support.strategies import Tokens

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

tokenizer_of = cache(AutoTokenizer.from_pretrained)

QUERY, ITEMS = "Is it a fruit? It is", [" an apple", "n't", "", " 19 hammers"]
OPTIONS = [{}, {"apply_softmax": True, "temperature": 0.7}]


@pytest.fixture(scope="module", params=[("qwen3", 1), ("gemma2", 3)], ids=["one-logit", "three-logits"])
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
