"""Labels of their own for each item: checked, gathered, read, split and joined as if alone."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.errors import RequestError
from hiscore.layers import pair_products
from hiscore.layers.lm_head import LMHead
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.packing.batch_plan import ScoringPlan
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.options import ScoreOptions, parse_options
from hiscore.scoring.requests.repeated_labels import check_repeated
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.requests.validation import check_labels
from hiscore.scoring.results.readout_plan import ReadoutPlan
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import load_tokenizer
from tests.support import tiny_tokenizers
from tests.support.encoding import encode_requests
from tests.support.heads import nowhere, results_of

HIDDEN, VOCABULARY, ITEMS = 577, 3_000, 40  # no power of 2, so that a fold has a rest
FACTS = CheckpointFacts(VOCABULARY, 100, is_classifier=False)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def prompt(items: int) -> MultiItemPrompt:
    return MultiItemPrompt(np.zeros(items + 1, np.int32), 1, np.ones(items, np.int64))


@pytest.fixture(scope="module")
def head() -> LMHead:
    return LMHead(torch.randn(VOCABULARY, HIDDEN, generator=generator(1)), None)


@pytest.fixture(scope="module")
def hidden() -> torch.Tensor:
    return torch.randn(ITEMS, HIDDEN, generator=generator(2))


@pytest.fixture(scope="module")
def own() -> list[np.ndarray]:
    """2 to 255 distinct labels for each item."""
    rng = np.random.default_rng(3)
    counts = [2, 255, *rng.integers(2, 256, ITEMS - 2)]
    return [rng.choice(VOCABULARY, count, replace=False).astype(np.int32) for count in counts]


def call(labels: Sequence[np.ndarray], own_labels: bool = True, **options: Any) -> ScoreRequest:
    if own_labels:
        options["label_counts"] = tuple(map(len, labels))
    return ScoreRequest.of(prompt(len(labels)), np.concatenate(labels), ScoreOptions(**options))


def scores(head: LMHead, hidden: torch.Tensor, request: ScoreRequest) -> np.ndarray:
    (result,) = results_of(head, hidden, [request])
    return ReadoutPlan.of(request, is_classifier=False).reader()(result.values.numpy())


@pytest.mark.parametrize("own_labels", [True, False])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_an_item_scores_to_the_bit_as_in_a_call_of_its_own(
    head: LMHead, hidden: torch.Tensor, own: list[np.ndarray], temperature: float, own_labels: bool
) -> None:
    options = {"apply_softmax": True, "temperature": temperature}
    together = scores(head, hidden, call(own, **options))
    assert together.shape == (ITEMS, 255)
    for index, labels in enumerate(own):
        alone = scores(head, hidden[index : index + 1], call([labels], own_labels, **options))
        assert together[index, : len(labels)].tobytes() == alone.tobytes()
        assert (together[index, len(labels) :] == 0).all()


def test_control_matrix_products_differ(head: LMHead, hidden: torch.Tensor, own: list[np.ndarray]) -> None:
    """Somewhere among these shapes, or this library's products would do."""
    pairs = head.pair_logits(
        np.repeat(np.arange(ITEMS), [len(o) for o in own]), np.concatenate(own), nowhere()
    )(hidden)
    parts = pairs.split([len(labels) for labels in own])
    products = [head.label_logits(labels, nowhere())(hidden[i : i + 1])[0] for i, labels in enumerate(own)]
    torch.testing.assert_close(pairs, torch.cat(products), atol=1e-3, rtol=0)
    assert any(not torch.equal(*each) for each in zip(parts, products, strict=True))


@pytest.mark.slow
def test_pairs_do_not_depend_on_how_many_are_computed_at_once(
    head: LMHead, hidden: torch.Tensor, own: list[np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    request = call(own, apply_softmax=True)
    whole = scores(head, hidden, request)
    for at_once in (1, 1_000, 30_000):
        monkeypatch.setattr(pair_products, "PRODUCTS_AT_ONCE", at_once)
        assert scores(head, hidden, request).tobytes() == whole.tobytes()


def test_scores_are_softmax_of_own_labels(head: LMHead, hidden: torch.Tensor, own: list[np.ndarray]) -> None:
    logits = hidden.double() @ head._weight.double().T
    softmax = scores(head, hidden, call(own, apply_softmax=True))
    plain = scores(head, hidden, call(own))
    for index, labels in enumerate(own):
        expected = logits[index, labels].softmax(0).numpy()
        # float32 sums of 577 products of normal numbers.
        np.testing.assert_allclose(softmax[index, : len(labels)], expected, atol=2e-5)
        expected = logits[index].softmax(0)[labels].numpy()
        np.testing.assert_allclose(plain[index, : len(labels)], expected, atol=2e-5)


def test_nothing_to_score_has_no_rows() -> None:
    empty = ScoreRequest.of(
        MultiItemPrompt.of([1], []), np.empty(0, np.int32), ScoreOptions(apply_softmax=True, label_counts=())
    )
    reader = ReadoutPlan.of(empty, is_classifier=False).reader()
    assert reader(np.empty(0, np.float32)).shape == (0, 0)


@pytest.mark.parametrize("value", ["[1", "7", "[1.0]", "[true]", '["1"]', "{}", "[" * 100_000])
def test_label_counts_must_be_a_list_of_integers(value: str) -> None:
    with pytest.raises(RequestError, match="'label_counts' must be a string"):
        parse_options(json.dumps({"label_counts": value}))


def test_every_item_needs_a_label() -> None:
    assert parse_options('{"label_counts": "[2, 1]"}').label_counts == (2, 1)
    with pytest.raises(RequestError, match="item 1 0 labels"):
        parse_options('{"label_counts": "[2, 0]"}')


BAD = {
    "2 numbers for 3 items": ((1, 2), [4, 5, 6], 3),
    "adds up to 3, but 2 labels": ((1, 2), [4, 5], 2),
    "item 1 4 labels: at most 3": ((1, 4), [4, 5, 6, 7, 8], 2),
    "ids of this model are 0 to 2999": ((1,), [3_000], 1),
}


@pytest.mark.parametrize("message", BAD)
def test_counts_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    monkeypatch.setattr(Limits, "max_labels", 3)
    counts, labels, items = BAD[message]
    with pytest.raises(RequestError, match=message):
        check_labels(np.array(labels, np.int32), Limits(), FACTS, counts, items)


def test_a_label_may_belong_to_several_items_but_not_twice_to_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Limits, "max_labels", 2)
    labels = np.array([5, 6, 5, 6], np.int32)
    assert check_labels(labels, Limits(), FACTS, (2, 2), 2) is labels
    check_repeated(labels, np.array([2, 2]))
    for first_item in (0, 3):
        with pytest.raises(RequestError, match=f"holds 5 more than once for item {first_item + 1}$"):
            check_repeated(np.array([5, 5, 6, 5], np.int32), np.array([1, 3]), first_item)


def test_a_classifier_has_no_labels_of_items_own() -> None:
    facts = CheckpointFacts(VOCABULARY, 100, is_classifier=True)
    with pytest.raises(RequestError, match="label_counts"):
        check_labels(np.empty(0, np.int32), Limits(), facts, (1,), 1)


def test_a_large_request_is_split_with_its_labels() -> None:
    own = [np.arange(count, dtype=np.int32) for count in range(2, 102)]
    request, parts, done = call(own, apply_softmax=True), [], 0
    while done is not None:
        part = ScoringPlan(QueryCache(64, 64), 32).take(request, done, 32, at_least_one=True)
        assert part is not None
        parts.append(part.job)
        done = part.done
    assert len(parts) > 2
    assert [count for part in parts for count in part.label_counts] == [len(labels) for labels in own]
    assert np.concatenate([part.labels for part in parts]).tolist() == np.concatenate(own).tolist()
    assert {part.columns for part in parts} == {101}


def test_texts_become_labels_of_items_own(tmp_path: Any) -> None:
    tokenizer = load_tokenizer(tiny_tokenizers.save(tiny_tokenizers.smollm2(), tmp_path))
    facts = CheckpointFacts(1_000, 100, is_classifier=False)
    labels = ["A", "B", "B", "A", "B", "Q"]
    (answer,) = encode_requests(
        tokenizer, [TextRequest("a", ["b", "c"], labels, label_counts=(2, 4))], Limits(), facts
    )
    assert isinstance(answer, RequestError)
    assert "'B' and 'B' are the same token" in answer.message
    (answer,) = encode_requests(
        tokenizer, [TextRequest("a", ["b", "c"], labels[:4], label_counts=(2, 2))], Limits(), facts
    )
    assert not isinstance(answer, RequestError)
    a, b = (tokenizer.backend.token_to_id(label) for label in "AB")
    assert answer.label_token_ids.tolist() == [a, b, b, a]
