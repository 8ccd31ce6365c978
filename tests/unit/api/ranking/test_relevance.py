"""Ranking documents by scores of labels, by a logit, and by pairs."""

import asyncio
import math
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from hiscore.api.http.errors import ApiError
from hiscore.api.models import MOST_CALLS, Models
from hiscore.api.ranking.relevance import Ranker, Ranking
from hiscore.api.wire import ModelCall
from hiscore.prompts.pairs import PairPrompts
from hiscore.prompts.recipe import Recipe, RecipePart
from hiscore.prompts.rerank import RerankPrompts
from hiscore.prompts.token_limits import MAX_CHARACTERS, TokenLimits, Truncation
from hiscore_client import ScoreResult, Usage
from tests.client.faulty_server import FaultyServer, serving
from tests.support.timeouts import TIMEOUT_S

LIMITS, CALL = TokenLimits(256, 10_000), ModelCall("id", "m")
RECIPE = Recipe(RecipePart("pair", "files"), RecipePart("its one label", "files"))


def rank(
    prompts: Any, scores: Sequence[Sequence[float]] | None, documents: Sequence[str], **options: Any
) -> tuple[Ranking, FaultyServer]:
    """The ranking by a model that gives these scores, rows of documents; None: the fake's own."""
    server = FaultyServer()

    def change(outputs: dict[str, np.ndarray]) -> None:
        outputs["scores"] = np.array([scores], np.float32)

    if scores is not None:
        server.change = change

    async def call(address: str) -> Ranking:
        models = Models(address, ["scorer"], timeout_s=TIMEOUT_S)
        query = options.pop("query", "a fruit")
        try:
            recipe = options.pop("recipe", RECIPE)
            return await Ranker(models, LIMITS, prompts, recipe).rank(query, documents, CALL, **options)
        finally:
            await models.close()

    with serving(server) as address:
        return asyncio.run(call(address)), server


@pytest.fixture(scope="module")
def prompts(checkpoint: Path) -> RerankPrompts:
    return RerankPrompts(checkpoint, labels=("a", "b"))


def test_a_score_is_that_of_the_first_label(prompts: RerankPrompts) -> None:
    ranking, server = rank(prompts, [[1, 3], [2, 2], [900, -900], [-9, 200]], ["a", "b", "c", "d"])
    assert ranking.logits == [-2, 0, 1_800, -209]
    assert ranking.scores == pytest.approx([1 / (1 + math.exp(2)), 0.5, 1, 0])
    assert ranking.best(None) == [2, 1, 0, 3]
    assert ranking.best(2) == [2, 1]
    (request,) = server.requests
    assert request.parameters["raw_logits"].bool_param
    assert request.model_name == "scorer"
    assert (ranking.prompt_tokens, ranking.cached_tokens) == (tokens(server), 1)


def tokens(server: FaultyServer) -> int:
    (request,) = server.requests
    ids, delimiters = request.inputs[0].shape[1], request.inputs[1].shape[1]
    return int(ids - delimiters)


def test_of_equal_documents_the_first_is_first() -> None:
    ranking = Ranking([0.5] * 4, [0.0, 1.0, 0.0, 1.0], 1, 0, [False] * 4)
    assert ranking.best(None) == [1, 3, 0, 2]


def test_a_classifier_scores_by_its_logit(checkpoint: Path) -> None:
    pairs = PairPrompts(checkpoint)
    ranking, _ = rank(pairs, [[0.0], [-2.0], [800.0], [-800.0]], ["a", "b", "c", "d"])
    assert ranking.logits == [0, -2, 800, -800]
    assert ranking.scores == pytest.approx([0.5, 1 / (1 + math.exp(2)), 1, 0])
    assert ranking.best(None) == [2, 0, 1, 3]


def test_one_label_scores_by_its_logit(checkpoint: Path) -> None:
    ranking, server = rank(RerankPrompts(checkpoint, "bge-reranker-v2-gemma"), [[0.0], [-2.0]], ["a", "b"])
    assert ranking.logits == [0, -2]
    assert server.requests[0].parameters["raw_logits"].bool_param


@pytest.mark.parametrize("column", [0, 2])
def test_a_classifier_of_several_labels_scores_by_one_against_the_others(
    checkpoint: Path, column: int
) -> None:
    scores = np.array([[0.0, 1.0, 2.0], [-3.0, 0.5, 900.0]])
    of_all = replace(RECIPE, column=column, activation=RecipePart("Softmax", "default"))
    ranking, _ = rank(PairPrompts(checkpoint), scores.tolist(), ["a", "b"], recipe=of_all)
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    expected = powers[:, column] / powers.sum(axis=1)
    assert ranking.scores == pytest.approx(expected)
    assert ranking.logits[0] == pytest.approx(np.log(expected[0]) - np.log1p(-expected[0]))
    assert np.isfinite(ranking.logits).all()


@pytest.mark.parametrize(
    ("activation", "expected"),
    [
        ("Identity", [-2, 3]),
        ("Tanh", np.tanh([-2, 3])),
        ("ReLU", [0, 3]),
        ("Sigmoid", 1 / (1 + np.exp([2, -3]))),
    ],
)
def test_a_score_is_what_the_activation_makes_of_a_logit(
    checkpoint: Path, activation: str, expected: Sequence[float]
) -> None:
    """Of one label of several, too, where they exclude each other not."""
    recipe = replace(RECIPE, column=1, activation=RecipePart(activation, "files"))
    ranking, _ = rank(PairPrompts(checkpoint), [[9, -2], [9, 3]], ["a", "b"], recipe=recipe)
    assert ranking.scores == pytest.approx(list(expected))
    assert (ranking.logits, ranking.best(None)) == ([-2, 3], [1, 0])
    # TEI's scores are from 0 to 1 in any case.
    assert ranking.probabilities == pytest.approx([1 / (1 + math.exp(2)), 1 / (1 + math.exp(-3))])


def test_a_request_of_many_queries_leaves_room_and_ends_as_a_whole(checkpoint: Path) -> None:
    running, most, done = 0, 0, 0

    class Failing:
        async def score_ids(self, *prompt: Any, **options: Any) -> Any:
            nonlocal running, most, done
            running, done = running + 1, done + 1
            most, ordinal = max(most, running), done
            try:
                await asyncio.sleep(0 if ordinal < 100 else 3_600)
                if ordinal == 99:
                    raise ApiError(503, "too busy")
                return ScoreResult(np.zeros((1, 1), np.float32), Usage(1, 0), "id")
            finally:
                running -= 1

    async def call() -> None:
        ranker = Ranker(cast(Models, Failing()), LIMITS, PairPrompts(checkpoint), RECIPE)
        with pytest.raises(ApiError, match="too busy"):
            await ranker.rank([f"{number}" for number in range(300)], ["a"] * 300, CALL)
        await asyncio.sleep(0)
        assert running == 0

    asyncio.run(call())
    assert most == MOST_CALLS


def test_a_document_that_was_cut_is_named(prompts: RerankPrompts) -> None:
    documents = ["apple", "apple " * 50]
    ranking, _ = rank(prompts, None, documents, truncation=Truncation(document=10))
    assert ranking.cut == [False, True]
    ranking, _ = rank(prompts, None, documents, truncation=Truncation(query=1))
    assert ranking.cut == [True, True]


def test_each_document_may_have_its_own_query(prompts: RerankPrompts) -> None:
    one, first = rank(prompts, None, ["x", "x"], query=["a fruit", "a tool"])
    other, second = rank(prompts, None, ["x", "x"], query=["a tool", "a fruit"])
    assert one.logits == other.logits[::-1]
    assert one.logits[0] != one.logits[1]
    assert first.requests != second.requests


@pytest.mark.parametrize(
    "cut", [Truncation(), Truncation(query=5), Truncation(prompt=200), Truncation(document=5)]
)
def test_what_can_fit_no_prompt_is_refused_before_it_is_encoded(checkpoint: Path, cut: Truncation) -> None:
    prompts = RerankPrompts(checkpoint, labels=("a", "b"))
    assert prompts.tokenizer.bytes_per_token is not None
    most = LIMITS.context * prompts.tokenizer.bytes_per_token
    encoded: list[int] = []

    class Counting(type(prompts.tokenizer)):  # type: ignore[misc]
        def encode_texts(self, texts: Sequence[str]) -> Any:
            encoded.extend(map(len, texts))
            return super().encode_texts(texts)

    prompts.tokenizer.__class__ = Counting
    long = "ab " * most
    asked = [({"query": long}, ["a"], cut.query), ({}, [long, "a"], cut.document or cut.prompt)]
    for query, documents, may_be_cut in asked:
        encoded.clear()
        if may_be_cut:
            ranking, _ = rank(prompts, None, documents, truncation=cut, **query)
            assert ranking.cut[0]
        else:
            with pytest.raises(ApiError, match="MAX_CONTEXT") as caught:
                rank(prompts, None, documents, truncation=cut, **query)
            assert caught.value.status == 400
        assert sum(encoded) < 20 * most < len(long) * 20


def test_more_than_may_be_encoded_is_refused_before_it_is_rendered(checkpoint: Path) -> None:
    prompts = RerankPrompts(checkpoint, labels=("a", "b"))
    # A query stands in the prompt of every document, and a template around documents without text.
    for query, count in (("a" * 10_000, MAX_CHARACTERS // 10_000), ("", MAX_CHARACTERS // 10)):
        with pytest.raises(ApiError, match=f"at most {MAX_CHARACTERS} in one call"):
            rank(prompts, None, [""] * count, query=query)


def test_others_do_not_wait_for_the_prompts_of_a_large_call(prompts: RerankPrompts) -> None:
    """Tasks of others go on while a large call is encoded; in the control, a small one, they do not."""

    class Slow(RerankPrompts):
        def ids(self, *arguments: Any) -> Any:
            others.clear()
            # The control waits in vain.
            beside.append(others.wait(TIMEOUT_S if large else 0.5))
            return super().ids(*arguments)

    beside: list[bool] = []
    others = threading.Event()
    slow = Slow.__new__(Slow)
    slow.__dict__ = prompts.__dict__

    async def call(address: str, documents: list[str]) -> None:
        models = Models(address, ["scorer"], timeout_s=TIMEOUT_S)
        ranker = Ranker(models, LIMITS, slow, RECIPE)
        work = asyncio.ensure_future(ranker.rank("a", documents, CALL))
        while not work.done():
            others.set()
            await asyncio.sleep(0.01)
        await models.close()

    with serving(FaultyServer()) as address:
        for large in (True, False):
            asyncio.run(call(address, ["a" * 1_000] * (2**17 // 1_000 if large else 1)))
    assert beside == [True, False]
