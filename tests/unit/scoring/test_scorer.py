"""The scorer against transformers, one item at a time, for every family, in float32."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hiscore.attention.metadata import SegmentGroup
from hiscore.errors import RequestError
from hiscore.recurrence.metadata import CHUNK
from hiscore.scoring import decoder_scorer
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.packing.packing import Batch, pack
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.query_key import PAGE
from tests.support import comparison
from tests.support.comparison import INVARIANCE
from tests.support.scoring import LABELS, SOFTMAX, request, score
from tests.support.strategies import Tokens, random_tokens, tokens
from tests.support.tiers import first_of
from tests.support.tiny_models import (
    CONTEXT,
    FAMILIES,
    FIRST,
    RECURRENT,
    VOCABULARY,
    WITHOUT_CLASSIFIER,
    make,
)
from tests.support.truth import Truth


def check(found: np.ndarray, truth: np.ndarray, options: ScoreOptions) -> None:
    comparison.check(found, truth, not options.apply_softmax and bool(truth.size) and truth.min() >= 0)


BATCH = [(13, [1, 7, 7, 0, 20, 3]), (0, [2, 1]), (1, [0, 0, 5]), (40, [31]), (6, [])]


@pytest.mark.parametrize(
    ("family", "labels"),
    first_of(
        *((family, None) for family in FAMILIES),
        *((family, 1) for family in FAMILIES if family not in WITHOUT_CLASSIFIER),
        *((family, 3) for family in FIRST if family not in WITHOUT_CLASSIFIER),
        others=pytest.mark.slow,
    ),
)
def test_scores_equal_transformers_one_at_a_time(family: str, labels: int | None, checkpoints) -> None:
    checkpoint, truth = checkpoints(family, labels)
    rng = np.random.default_rng(0)
    calls = [random_tokens(rng, query, items, VOCABULARY) for query, items in BATCH]
    for budget in (4_096, CHUNK if family in RECURRENT else PAGE):
        scorer = load_decoder_scorer(checkpoint, "cpu", "float32", budget)
        for options in (ScoreOptions(), ScoreOptions(apply_softmax=True, temperature=0.7)):
            found = score(scorer, calls, options)
            for call, scores in zip(calls, found, strict=True):
                if call.items:
                    ids = [] if labels else LABELS
                    expected = truth.scores(
                        call.query, call.items, ids, options.apply_softmax, options.temperature
                    )
                    check(scores, expected, options)
                else:
                    assert scores.shape == (0, labels or len(LABELS))


@pytest.mark.parametrize("pad", [2, 3])
def test_a_classifier_is_read_at_the_last_token_and_pads_left_off_give_transformers_scores(
    pad: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Reward models of TRL have one token for the end of texts and the pad: transformers skips it, their author's
    scores are those of the texts without it."""
    checkpoint = make("llama", tmp_path, labels=1)
    config = json.loads((checkpoint / "config.json").read_text())
    (checkpoint / "config.json").write_text(json.dumps(config | {"pad_token_id": pad, "eos_token_id": 2}))
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    query, items, options = [5, 6, 7], [[8, 9], [10, pad, 11]], ScoreOptions()
    ended = Tokens(query, [[*item, pad, pad] for item in items])
    with_pads, without = score(scorer, [ended, Tokens(query, items)], options)
    read_last, skipping = Truth(checkpoint), Truth(checkpoint, skips_pads=True)
    check(with_pads, read_last.scores(query, ended.items), options)
    check(without, skipping.scores(query, ended.items), options)
    # The control: they are not the same.
    assert np.abs(with_pads - without).min() > 1e-2
    assert ("also ends texts" in caplog.text) == (pad == 2)


def plain_causal(calls, budget: int, pages, longrope) -> Batch:
    """Plain causal attention over the packed sequence: a token sees everything before it."""
    (forward,) = pack(calls, budget, pages, longrope).forwards
    rows = len(forward.input_ids)
    everything = SegmentGroup(0, rows, np.empty(0, np.int64), slice(0, 0))
    edges = np.array([0, rows], np.int32)
    return Batch((forward._replace(cu_seqlens=edges, groups=(everything,)),), (0,) * len(calls))


def restarted_positions(calls, budget: int, pages, longrope) -> Batch:
    """Positions that continue through the packed sequence instead of from the query."""
    (forward,) = pack(calls, budget, pages, longrope).forwards
    positions = np.arange(len(forward.input_ids), dtype=np.int32)
    return Batch((forward._replace(positions=positions),), (0,) * len(calls))


@pytest.mark.parametrize("wrong", [plain_causal, restarted_positions])
@pytest.mark.parametrize("family", first_of(*FIRST, others=pytest.mark.slow))
def test_control_a_wrong_mask_or_position_fails(family: str, wrong, checkpoints, monkeypatch) -> None:
    checkpoint, truth = checkpoints(family)
    call = random_tokens(np.random.default_rng(0), 13, [3, 7, 7, 12], VOCABULARY)
    expected = truth.scores(call.query, call.items, LABELS, apply_softmax=True)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096, query_cache_bytes=0)
    check(score(scorer, [call], SOFTMAX)[0], expected, SOFTMAX)
    monkeypatch.setattr(decoder_scorer, "pack", wrong)
    with pytest.raises(AssertionError):
        check(score(scorer, [call], SOFTMAX)[0], expected, SOFTMAX)


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    batch=st.lists(tokens(VOCABULARY), min_size=1, max_size=4),
    budget=st.sampled_from([4_096, 64, 33]),
    family=st.sampled_from(sorted(FAMILIES)),
    softmax=st.booleans(),
)
def test_any_shapes_equal_transformers(batch, budget: int, family: str, softmax: bool, checkpoints) -> None:
    checkpoint, truth = checkpoints(family)
    options = ScoreOptions(apply_softmax=softmax)
    scorer = load_decoder_scorer(
        checkpoint, "cpu", "float32", max(budget, CHUNK) if family in RECURRENT else budget
    )
    for call, scores in zip(batch, score(scorer, batch, options), strict=True):
        if call.items:
            check(scores, truth.scores(call.query, call.items, LABELS, softmax), options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("query", "items"),
    [(20, [1, 2_000]), (50, [3] * 1_000), (2_000, [1, 2]), (1, [0] * 50)],
    ids=["one-beside-2000", "thousand-items", "long-query", "empty-items"],
)
def test_adversarial_shapes_equal_transformers(query: int, items: list[int], checkpoints) -> None:
    checkpoint, truth = checkpoints("qwen3")
    call = random_tokens(np.random.default_rng(3), query, items, VOCABULARY)
    found = score(load_decoder_scorer(checkpoint, "cpu", "float32", 1_500), [call], SOFTMAX)[0]
    some = sorted({0, 1, len(items) // 2, len(items) - 1})
    check(found[some], truth.scores(call.query, [call.items[i] for i in some], LABELS, True), SOFTMAX)


def test_the_ids_of_special_tokens_are_ids_like_others(checkpoints) -> None:
    """bos, eos and 0 as content, as label and at the end, for a causal LM and for a classifier."""
    call = Tokens([1, 2, 0, 2], [[2], [1, 1], [0, 0, 2], [2, 2]])
    for labels in (None, 3):
        checkpoint, truth = checkpoints("llama", labels)
        scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
        expected = truth.scores(call.query, call.items, [] if labels else LABELS)
        check(score(scorer, [call], ScoreOptions())[0], expected, ScoreOptions())


@pytest.mark.parametrize("family", FIRST)
def test_no_item_and_no_neighbour_changes_a_score(family: str, checkpoints) -> None:
    checkpoint, _ = checkpoints(family)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    rng = np.random.default_rng(5)
    call = random_tokens(rng, 17, [4, 9, 1, 0, 30, 9], VOCABULARY)
    alone = score(scorer, [call], SOFTMAX)[0]

    order = rng.permutation(len(call.items))
    permuted = score(scorer, [Tokens(call.query, [call.items[i] for i in order])], SOFTMAX)[0]
    np.testing.assert_allclose(permuted, alone[order], atol=INVARIANCE, rtol=0)

    fewer = score(scorer, [Tokens(call.query, call.items[2:4])], SOFTMAX)[0]
    np.testing.assert_allclose(fewer, alone[2:4], atol=INVARIANCE, rtol=0)

    others = [random_tokens(rng, query, items, VOCABULARY) for query, items in BATCH]
    batched = score(scorer, [*others, call, *others], SOFTMAX)[len(others)]
    np.testing.assert_allclose(batched, alone, atol=INVARIANCE, rtol=0)
    # They do differ from item to item, or the three checks above would say nothing.
    assert np.ptp(alone[:, 0]) > 100 * INVARIANCE


@pytest.mark.parametrize("family", FIRST)
def test_a_cached_query_changes_no_score(family: str, checkpoints) -> None:
    """Hit in the next batch and in the same one, whole and in part, empty items included."""
    checkpoint, truth = checkpoints(family)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    rng = np.random.default_rng(9)
    call = random_tokens(rng, 64, [4, 9, 1, 0, 30], VOCABULARY)
    longer = Tokens(call.query + [7] * 21, call.items)
    cached = []
    for batch in ([call], [call, longer, call], [longer]):
        answers, _ = scorer.score([request(scorer, each, SOFTMAX) for each in batch])
        for each, answer in zip(batch, answers, strict=True):
            check(answer.scores, truth.scores(each.query, each.items, LABELS, True), SOFTMAX)
            cached.append(answer.cached_tokens)
    # In pages of 32; an empty item is read at the query's last token, which must be computed, once for a batch.
    # A state is kept after 64 tokens.
    first = 0 if family in RECURRENT else 32
    assert cached == [0, first, 64, 64, 64]


@pytest.mark.slow
@pytest.mark.exhaustive
def test_control_a_poisoned_cache_shows_and_a_forgotten_one_does_not(checkpoints) -> None:
    """Pages in the cache are read; pages that were dropped from it are not."""
    checkpoint, truth = checkpoints("llama")
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    call = random_tokens(np.random.default_rng(10), 64, [4, 9], VOCABULARY)
    expected = truth.scores(call.query, call.items, LABELS, True)
    check(score(scorer, [call], SOFTMAX)[0], expected, SOFTMAX)
    scorer.runner.pool.fill_(3.0)
    with pytest.raises(AssertionError):
        check(score(scorer, [call], SOFTMAX)[0], expected, SOFTMAX)
    scorer.runner.pool.fill_(float("nan"))
    scorer.packing.cache.clear()
    check(score(scorer, [call], SOFTMAX)[0], expected, SOFTMAX)


def test_calls_with_different_labels_and_options_share_a_batch(checkpoints) -> None:
    checkpoint, truth = checkpoints("gemma2")
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    call = random_tokens(np.random.default_rng(6), 9, [3, 4], VOCABULARY)
    wanted = [
        ([1, 2], ScoreOptions(apply_softmax=True)),
        ([499], ScoreOptions()),
        ([2, 1, 7], ScoreOptions()),
        ([3, 9], ScoreOptions(raw_logits=True)),
    ]
    answers, stats = scorer.score([request(scorer, call, options, labels) for labels, options in wanted])
    assert stats.forwards == 1
    for (labels, options), answer in zip(wanted[:-1], answers, strict=False):
        check(answer.scores, truth.scores(call.query, call.items, labels, options.apply_softmax), options)
    logits = np.stack([truth.logits([*call.query, *item])[wanted[-1][0]] for item in call.items])
    np.testing.assert_allclose(answers[-1].scores, logits, atol=1e-4, rtol=0)


def test_a_model_that_gives_nan_gives_errors_not_scores(checkpoints) -> None:
    """Only the call whose numbers are not finite fails. (Mistral's head is not its embedding.)"""
    checkpoint, truth = checkpoints("mistral")
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    scorer.runner._decoder.weights.embedding[123] = float("nan")
    good, bad = Tokens([1, 2], [[3], [4]]), Tokens([1, 2], [[3], [123]])
    labels = [5, 6]
    for options in (ScoreOptions(), ScoreOptions(apply_softmax=True)):
        answers, _ = scorer.score([request(scorer, call, options, labels) for call in (good, bad, good)])
        assert isinstance(answers[1], RequestError)
        expected = truth.scores(good.query, good.items, labels, options.apply_softmax)
        for answer in (answers[0], answers[2]):
            check(answer.scores, expected, options)


def test_bfloat16_stays_near_float32(checkpoints) -> None:
    """8 bits of mantissa through four layers; the bound is twice what was seen over all families."""
    call = random_tokens(np.random.default_rng(8), 13, [3, 7, 12], VOCABULARY)
    checkpoint, truth = checkpoints("qwen3")
    found = score(load_decoder_scorer(checkpoint, "cpu", "bfloat16", 4_096), [call], SOFTMAX)[0]
    expected = truth.scores(call.query, call.items, LABELS, apply_softmax=True)
    np.testing.assert_allclose(found, expected, atol=0.05, rtol=0)


def test_a_shorter_context_changes_the_bound_and_no_score(checkpoints) -> None:
    checkpoint, _ = checkpoints("qwen3")
    calls = [random_tokens(np.random.default_rng(5), 20, [3, 9], VOCABULARY)]
    whole = load_decoder_scorer(checkpoint, "cpu", "float32", 32, 0)
    short = load_decoder_scorer(checkpoint, "cpu", "float32", 32, 0, max_context=29)
    assert (whole.facts.context_length, short.facts.context_length) == (CONTEXT, 29)
    found, expected = (score(each, calls, ScoreOptions())[0] for each in (short, whole))
    assert np.array_equal(found, expected)
    assert short.runner.pool.shape[1] < whole.runner.pool.shape[1]
    with pytest.raises(ValueError, match=f"MAX_CONTEXT is {CONTEXT + 1}"):
        load_decoder_scorer(checkpoint, "cpu", "float32", 32, max_context=CONTEXT + 1)
