"""The scorer of encoders against transformers, one pair at a time, for every family, in float32."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hiscore.attention.metadata import Forward
from hiscore.errors import RequestError
from hiscore.models.facts import read_facts
from hiscore.scoring import pair_scorer
from hiscore.scoring.packing.packing import Batch
from hiscore.scoring.packing.pairs import pack_pairs
from hiscore.scoring.pair_scorer import load_encoder_scorer
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.scoring.scorer import Scorer
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.tokenizer import load_tokenizer
from tests.support.encoding import encode_requests
from tests.support.pair_truth import PairTruth
from tests.support.scoring import PLAIN, SOFTMAX, request, score
from tests.support.strategies import Tokens, random_tokens, tokens
from tests.support.tiers import first_of
from tests.support.tiny_encoders import CONTEXT, ENCODERS, VOCABULARY, make

# float32 sums in another order; 1e-6 was seen at logits of 1.
TOLERANCE = 2e-5

QUERY = "Is this a fruit? Answer Yes or No."
ITEMS = [
    "an apple",
    "",
    "12 nails and a hammer, 345 screws",
    "Is this a fruit? Answer Yes or No.",
    "x",
    "苹果",
]

Made = Callable[..., tuple[Path, PairTruth]]
Scorers = Callable[..., Scorer]


@pytest.fixture(scope="module")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """Tiny encoders by (name, labels) with their truth, made on first use."""

    @cache
    def get(name: str, labels: int = 2) -> tuple[Path, PairTruth]:
        directory = make(name, tmp_path_factory.mktemp(name), labels)
        return directory, PairTruth(directory)

    return get


@pytest.fixture(scope="module")
def scorers(encoders: Made) -> Scorers:
    """Scorers of these encoders in float32, with a budget that may differ from call to call."""
    loaded = cache(lambda name, labels: load_encoder_scorer(encoders(name, labels)[0], "cpu", "float32"))

    def get(name: str, labels: int = 2, budget: int = 4_096) -> Scorer:
        scorer = loaded(name, labels)
        scorer.packing = replace(scorer.packing, budget=budget)
        return scorer

    return get


def encode(checkpoint: Path, requests: Sequence[TextRequest]) -> list[MultiItemPrompt]:
    answers = encode_requests(
        load_tokenizer(checkpoint, pairs=True), requests, Limits(), read_facts(checkpoint)
    )
    return [answer.prompt for answer in answers]


def check(found: np.ndarray, truth: np.ndarray) -> None:
    np.testing.assert_allclose(found, truth, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", first_of(*ENCODERS, others=pytest.mark.slow))
def test_texts_equal_transformers_one_pair_at_a_time(name: str, encoders: Made, scorers: Scorers) -> None:
    """With and without a query, in one forward and in several, raw and after softmax or sigmoid."""
    for labels in (1, 5):
        checkpoint, truth = encoders(name, labels)
        queries = [QUERY, "", "a"]
        prompts = encode(checkpoint, [TextRequest(query, ITEMS) for query in queries])
        for budget in (4_096, 20):
            scorer = scorers(name, labels, budget)
            for softmax in (False, True):
                options = SOFTMAX if softmax else PLAIN
                for query, found in zip(queries, score(scorer, prompts, options), strict=True):
                    expected = truth.scores(query, ITEMS, softmax)
                    check(found, expected)
                    assert np.ptp(found[:, 0]) > 100 * TOLERANCE  # or the check would say little


@pytest.mark.parametrize("name", ENCODERS)
def test_an_item_may_come_first_if_no_token_type_forbids(name: str, encoders: Made, scorers: Scorers) -> None:
    checkpoint, truth = encoders(name)
    asked = TextRequest(QUERY, ITEMS, item_first=True)
    if ENCODERS[name].has_types:
        tokenizer = load_tokenizer(checkpoint, pairs=True)
        (answer,) = encode_requests(tokenizer, [asked], Limits(), read_facts(checkpoint))
        assert "'item_first' must be false" in str(answer)
    else:
        (found,) = score(scorers(name), encode(checkpoint, [asked]))
        expected = truth.scores(QUERY, ITEMS, item_first=True)
        check(found, expected)
        assert np.abs(expected - truth.scores(QUERY, ITEMS)).max() > 100 * TOLERANCE


BATCH = [(13, [1, 7, 7, 0, 20, 3]), (0, [2, 1]), (1, [0, 0, 5]), (40, [31]), (6, []), (9, [CONTEXT - 9])]


@pytest.mark.parametrize("name", ENCODERS)
def test_ids_equal_transformers(name: str, encoders: Made, scorers: Scorers) -> None:
    """Any ids, pads and separators among them, up to the whole context."""
    _, truth = encoders(name)
    rng = np.random.default_rng(0)
    calls = [random_tokens(rng, query, items, VOCABULARY) for query, items in BATCH]
    calls.append(Tokens([0, 1, 2, 3], [[1, 1, 5], [1], [0, 3, 2, 1, 7]]))  # pads of every family
    scorer = scorers(name, budget=64)
    for call, found in zip(calls, score(scorer, calls), strict=True):
        if call.items:
            check(found, truth.scores_of_ids(call.query, call.items))
        else:
            assert found.shape == (0, 2)


@pytest.mark.slow
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.lists(tokens(VOCABULARY), min_size=1, max_size=4),
    budget=st.sampled_from([4_096, 64, 17]),
    name=st.sampled_from(sorted(ENCODERS)),
)
def test_any_shapes_equal_transformers(
    batch: list[Tokens], budget: int, name: str, encoders: Made, scorers: Scorers
) -> None:
    _, truth = encoders(name)
    scorer = scorers(name, budget=budget)
    for call, found in zip(batch, score(scorer, batch), strict=True):
        if call.items:
            check(found, truth.scores_of_ids(call.query, call.items))


def one_type(forward: Forward) -> Forward:
    assert forward.token_types is not None
    return forward._replace(token_types=np.zeros_like(forward.token_types))


def shifted(forward: Forward) -> Forward:
    return forward._replace(positions=forward.positions[::-1].copy())


def joined(forward: Forward) -> Forward:
    """All pairs as one: each attends to the others."""
    return forward._replace(cu_seqlens=forward.cu_seqlens[[0, -1]])


@pytest.mark.parametrize("wrong", [one_type, shifted, joined])
@pytest.mark.parametrize("name", first_of(*ENCODERS, others=pytest.mark.slow))
def test_control_wrong_types_positions_or_segments_fail(
    name: str,
    wrong: Callable[[Forward], Forward],
    encoders: Made,
    scorers: Scorers,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tiny = ENCODERS[name]
    if wrong is one_type and not tiny.has_types:
        return  # it has one type
    if wrong is shifted and tiny.changes.get("position_biased_input") is False:
        return  # it has distances alone, which follow from the rows
    if wrong is joined and tiny.reads_all:
        return  # a mean over one segment would have another shape
    checkpoint, truth = encoders(name)
    items = ITEMS[:2]  # all of which fit one context
    prompts = encode(checkpoint, [TextRequest("a fruit?", items)])
    scorer = scorers(name)
    expected = truth.scores("a fruit?", items)
    check(score(scorer, prompts)[0], expected)

    def pack_wrongly(*arguments: object) -> Batch:
        batch = pack_pairs(*arguments)
        return replace(batch, forwards=tuple(map(wrong, batch.forwards)))

    monkeypatch.setattr(pair_scorer, "pack_pairs", pack_wrongly)
    with pytest.raises(AssertionError):
        check(score(scorer, prompts)[0], expected)


@pytest.mark.parametrize("name", first_of(*ENCODERS, others=pytest.mark.slow))
def test_no_item_and_no_neighbour_changes_a_score(name: str, scorers: Scorers) -> None:
    scorer = scorers(name)
    rng = np.random.default_rng(5)
    call = random_tokens(rng, 17, [4, 9, 1, 0, 30, 9], VOCABULARY)
    (alone,) = score(scorer, [call])
    (fewer,) = score(scorer, [Tokens(call.query, call.items[2:4])])
    check(fewer, alone[2:4])
    others = [random_tokens(rng, query, items, VOCABULARY) for query, items in BATCH]
    check(score(scorer, [*others, call, *others])[len(others)], alone)


def test_usage_counts_every_pair_in_full_and_nothing_is_cached(encoders: Made) -> None:
    scorer = load_encoder_scorer(encoders("bert")[0], "cpu", "float32", 32)
    call = random_tokens(np.random.default_rng(6), 10, [3, 0, 7], VOCABULARY)
    for _ in range(2):
        (answer,), stats = scorer.score([request(scorer, call)])
        assert (answer.prompt_tokens, answer.cached_tokens) == (3 * 10 + 10, 0)
        assert (stats.forwards, stats.tokens, stats.items) == (2, 40, 3)  # pairs of 13 and 10, then one of 17


def test_a_model_that_gives_nan_gives_errors_not_scores(encoders: Made) -> None:
    checkpoint, truth = encoders("bert")
    scorer = load_encoder_scorer(checkpoint, "cpu", "float32")
    scorer.runner._encoder.weights.embeddings.words[123] = float("nan")
    good, bad = Tokens([1, 2], [[3], [4]]), Tokens([1, 2], [[3], [123]])
    answers, _ = scorer.score([request(scorer, call) for call in (good, bad, good)])
    assert isinstance(answers[1], RequestError)
    for answer in (answers[0], answers[2]):
        check(answer.scores, truth.scores_of_ids(good.query, good.items))


@pytest.mark.parametrize("name", ["bert", "modernbert", "deberta-v3"])
def test_bfloat16_stays_near_float32(name: str, encoders: Made) -> None:
    """8 bits of mantissa through four layers; the bound is twice what was seen."""
    checkpoint, truth = encoders(name)
    call = random_tokens(np.random.default_rng(8), 13, [3, 7, 12], VOCABULARY)
    (found,) = score(load_encoder_scorer(checkpoint, "cpu", "bfloat16"), [call], SOFTMAX)
    np.testing.assert_allclose(found, truth.scores_of_ids(call.query, call.items, True), atol=0.05, rtol=0)


def test_fp8_is_refused_by_name(encoders: Made) -> None:
    with pytest.raises(ValueError, match="DTYPE is fp8: encoders are served in float32 and bfloat16"):
        load_encoder_scorer(encoders("bert")[0], "cpu", "fp8")


def test_a_smaller_context_is_kept(encoders: Made) -> None:
    checkpoint, truth = encoders("modernbert")
    scorer = load_encoder_scorer(checkpoint, "cpu", "float32", max_context=20)
    assert scorer.facts.context_length == read_facts(checkpoint, 20).context_length == 20
    call = random_tokens(np.random.default_rng(9), 8, [3, 12], VOCABULARY)
    check(score(scorer, [call])[0], truth.scores_of_ids(call.query, call.items))
    with pytest.raises(
        ValueError, match=f"MAX_CONTEXT is {CONTEXT + 1}: the checkpoint's context holds {CONTEXT}"
    ):
        load_encoder_scorer(checkpoint, "cpu", "float32", max_context=CONTEXT + 1)


def test_a_bert_whose_tokenizer_gives_no_types_has_one(encoders: Made, tmp_path: Path) -> None:
    """A BERT with a tokenizer of another family: transformers' own call passes no types either."""
    checkpoint, _ = encoders("bert")
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((checkpoint / name).read_bytes())
    ENCODERS["xlm-roberta"].tokenizer().save_pretrained(tmp_path)
    truth = PairTruth(tmp_path)
    assert "token_type_ids" not in truth.encode(QUERY, "x")
    (found,) = score(
        load_encoder_scorer(tmp_path, "cpu", "float32"), encode(tmp_path, [TextRequest(QUERY, ITEMS)])
    )
    check(found, truth.scores(QUERY, ITEMS))
