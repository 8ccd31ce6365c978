"""Labels of several tokens against transformers' log-softmax on the whole sequence, one at a time, in float32."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.recurrence.metadata import CHUNK
from hiscore.scoring.batched_scorer import BatchedScorer
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.packing import branches
from hiscore.scoring.packing.batch_plan import ScoringPlan
from hiscore.scoring.packing.branches import branched, choose_apart
from hiscore.scoring.packing.longrope import LongropeTables
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.label_trie import LABEL_ROWS, LabelTrie
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.requests.validation import check_computed, check_labels, with_tries
from hiscore.scoring.scorer import Scorer
from hiscore.settings import Limits
from tests.support import comparison
from tests.support.comparison import INVARIANCE
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiers import first_of
from tests.support.tiny_models import FAMILIES, RECURRENT, VOCABULARY

TOLERANCE = 2e-5
"""Of one token's log-probability: what float32 sums in another order may differ by."""
WIDER = dict.fromkeys(RECURRENT, comparison.TOLERANCE) | {"ministral3": 2 * TOLERANCE}
"""More is due to rounding: a recurrence carries it on from token to token, and Ministral 3 scales its queries."""
LABELS = [(7,), (8, 9), (8, 9, 10), (8, 9, 11, 12, 13), (8, 14, 15), (16, 17)]
FACTS = CheckpointFacts(VOCABULARY, 200, is_classifier=False)


def request(
    scorer: Scorer | None,
    call: Tokens,
    labels: list[tuple[int, ...]],
    sizes: list[int] | None = None,
    **options: Any,
) -> ScoreRequest:
    given = ScoreOptions(**options)
    ids = np.array([token for label in labels for token in label], np.int32)
    lengths = [*map(len, labels)]
    facts = FACTS if scorer is None else scorer.facts
    prompt = with_tries(call.prompt(), ids, lengths, sizes, given, Limits(), facts)
    return ScoreRequest.of(scorer.packing.prompt(prompt) if scorer else prompt, ids, given)


def truth_logs(truth, call: Tokens, labels: list[tuple[int, ...]]) -> list[list[np.ndarray]]:
    """Of each item and label the log-probability of each token, on the whole sequence."""
    found = []
    for item in call.items:
        prompt, of_item = [*call.query, *item], []
        for label in labels:
            with torch.inference_mode():
                logits = truth.model(torch.tensor([[*prompt, *label]]), use_cache=False).logits[0].double()
            logs = logits[len(prompt) - 1 : -1].log_softmax(dim=-1)
            of_item.append(logs[range(len(label)), list(label)].numpy())
        found.append(of_item)
    return found


def answers(scorer: Scorer, *requests: ScoreRequest):
    found, _ = scorer.score(requests)
    assert not any(isinstance(each, RequestError) for each in found), found
    return found


def check(found, expected: list[list[np.ndarray]], tolerance: float = TOLERANCE) -> None:
    """Compare the logarithms of labels, and those of their tokens."""
    sums = np.array([[label.sum() for label in item] for item in expected])
    longest = max(len(label) for item in expected for label in item)
    np.testing.assert_allclose(found.scores, sums, atol=longest * tolerance, rtol=0)
    tokens = np.concatenate([label for item in expected for label in item])
    np.testing.assert_allclose(found.tokens.logprobs, tokens, atol=tolerance, rtol=0)


SHAPES = [(13, [1, 0, 40, 7]), (70, [0]), (0, [5, 90]), (64, [33, 50])]


@pytest.mark.parametrize("family", first_of(*FAMILIES, others=pytest.mark.exhaustive))
def test_every_token_of_every_label_equals_transformers(family: str, checkpoints) -> None:
    checkpoint, truth = checkpoints(family, None)
    rng = np.random.default_rng(0)
    calls = [random_tokens(rng, query, items, VOCABULARY) for query, items in SHAPES]
    expected = [truth_logs(truth, call, LABELS) for call in calls]
    for budget, cache_bytes in ((4_096, None), (CHUNK if family in RECURRENT else PAGE, 0)):
        scorer = load_decoder_scorer(checkpoint, "cpu", "float32", budget, query_cache_bytes=cache_bytes)
        asked = [request(scorer, call, LABELS, log_scores=True, token_logprobs=3) for call in calls]
        for found, truths in zip(answers(scorer, *asked), expected, strict=True):
            check(found, truths, WIDER.get(family, TOLERANCE))


def shifted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each token is read one row too early."""
    of = LabelTrie.of.__func__
    monkeypatch.setattr(
        LabelTrie,
        "of",
        classmethod(lambda cls, *a: replace(made := of(cls, *a), rows=np.maximum(made.rows - 1, 0))),
    )


def sibling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows behind the shared beginning are those of another path."""
    add = branches._Branches.add_paths
    monkeypatch.setattr(
        branches._Branches,
        "add_paths",
        lambda made, item, trie, *rest: add(made, item, replace(trie, firsts=trie.firsts[::-1]), *rest),
    )


@pytest.mark.parametrize("wrong", [shifted, sibling])
def test_control_shifted_labels_and_a_siblings_rows_fail(wrong, checkpoints, monkeypatch) -> None:
    checkpoint, truth = checkpoints("llama", None)
    labels = [(8, 9, 10, 11), (8, 12, 13, 14)]
    call = random_tokens(np.random.default_rng(0), 13, [2, 3], VOCABULARY)
    expected = truth_logs(truth, call, labels)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    asked = {"log_scores": True, "token_logprobs": 0}
    check(answers(scorer, request(scorer, call, labels, **asked))[0], expected)
    wrong(monkeypatch)
    with pytest.raises(AssertionError):
        check(answers(scorer, request(scorer, call, labels, **asked))[0], expected)


def test_scores_are_products_normalised_and_compared_over_an_items_labels(checkpoints) -> None:
    checkpoint, truth = checkpoints("llama", None)
    call = random_tokens(np.random.default_rng(1), 13, [1, 40], VOCABULARY)
    sizes = [3, 1, 4, 1, 5, 9]
    logs = np.array([[label.sum() for label in item] for item in truth_logs(truth, call, LABELS)])
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    lengths = np.array([*map(len, LABELS)])
    for normalize, by in (("none", 1), ("tokens", lengths), ("bytes", np.array(sizes))):
        raw = logs / by
        soft = raw / 0.7 - np.log(np.exp(raw / 0.7).sum(axis=1, keepdims=True))
        for options, expected in (
            ({"log_scores": True}, raw),
            ({}, np.exp(raw)),
            ({"apply_softmax": True, "temperature": 0.7}, np.exp(soft)),
            ({"apply_softmax": True, "temperature": 0.7, "log_scores": True}, soft),
        ):
            asked = request(scorer, call, LABELS, sizes, normalize=normalize, **options)
            (found,) = answers(scorer, asked)
            # Of five tokens, divided by the temperature.
            np.testing.assert_allclose(found.scores, expected, atol=5 * TOLERANCE / 0.7, rtol=5 * TOLERANCE)


def test_ranks_and_the_likeliest_tokens_are_those_of_the_whole_vocabulary(checkpoints) -> None:
    checkpoint, truth = checkpoints("llama", None)
    query, label = [5, 6, 7], (8, 9, 10)
    with torch.inference_mode():
        logs = truth.model(torch.tensor([[*query, *label]]), use_cache=False).logits[0].double()
    logs = logs.log_softmax(dim=-1)[2:-1]
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)
    (found,) = answers(scorer, request(scorer, Tokens(query, [[]]), [label], token_logprobs=4))
    own = logs[range(3), list(label)][:, None]
    assert found.tokens.ranks.tolist() == ((logs > own).sum(dim=1) + 1).tolist()
    top = logs.topk(4, dim=1)
    assert found.tokens.top_ids.tolist() == top.indices.tolist()
    np.testing.assert_allclose(found.tokens.top_logprobs, top.values, atol=TOLERANCE, rtol=0)


def test_scores_depend_on_nothing_else_in_the_batch_or_the_call(checkpoints) -> None:
    """Items of their own labels, beside others, with the query cached, in parts: each as alone."""
    checkpoint, _ = checkpoints("llama", None)
    call = random_tokens(np.random.default_rng(2), 70, [1, 0, 90, 7, 60], VOCABULARY)
    own = [LABELS[:2], LABELS[2:], LABELS[:3], LABELS[1:5], LABELS[:1]]
    flat = [label for labels in own for label in labels]
    counts = tuple(map(len, own))

    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 128, query_cache_bytes=0)
    ones = [Tokens(call.query, [item]) for item in call.items]
    alone = [
        answers(scorer, request(scorer, one, labels, log_scores=True))[0].scores[0]
        for one, labels in zip(ones, own, strict=True)
    ]
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 128)
    others = [request(scorer, call, LABELS[:2], log_scores=True) for _ in range(2)]
    asked = request(scorer, call, flat, log_scores=True, label_counts=counts)
    assert asked.prompt.apart is not None
    assert 0 < asked.prompt.apart.sum() < len(counts)
    together = answers(scorer, others[0], asked, others[1])[1].scores
    cached = answers(scorer, asked)[0].scores
    model = BatchedScorer(scorer, lambda stats: None)
    parts, done = [], 0
    while done < len(call.items):
        part = model.plan().take(asked, done, 100, at_least_one=True)
        parts += list(model.launch([part.job]))[-1].finish()
        done = part.done or len(call.items)
    assert len(parts) > 1
    joined = model.join(asked, parts)["scores"][0]
    for item, count in enumerate(counts):
        for found in (together, cached, joined):
            np.testing.assert_allclose(found[item, :count], alone[item], atol=INVARIANCE, rtol=0)
            assert not found[item, count:].any()


def test_rows_are_computed_once_where_that_costs_less() -> None:
    """The cost that a batch is planned by is what is packed; short items are computed with each path."""
    rng = np.random.default_rng(3)
    cache = QueryCache(100, 10)
    reads = LabelTrie.of(LABELS).reads
    for query, items in [(13, [1, 0, 90, 7]), (64, [40, 2, 40]), (0, [50]), (3, [])]:
        asked = request(None, random_tokens(rng, query, items, VOCABULARY), LABELS, log_scores=True)
        prompt = choose_apart(asked.prompt, 4_096, cache)
        assert prompt.apart is not None
        assert prompt.apart.tolist() == [2 * item > query % PAGE for item in items]
        made = branched(prompt)
        assert sorted(row for _, *rows in made for each in rows for row in each.tolist()) == [
            *range(reads * len(items))
        ]
        # The query's pages are there for those behind the first.
        of_items = [
            len(p.tokens) - query if p.query_length == query else len(p.tokens) - query // PAGE * PAGE
            for p, *_ in made
        ]
        assert sum(of_items) == prompt.computed - query
    for other in (QueryCache(100, 10, caching=False), QueryCache(3, 3)):
        long = request(None, random_tokens(rng, 64, [90], VOCABULARY), LABELS, log_scores=True).prompt
        assert choose_apart(long, 4_096, other).apart is None


@pytest.mark.parametrize("items", [100, 200])
def test_a_part_reads_no_more_rows_than_are_planned(items: int) -> None:
    """Also where no query is cached, and a call would rather stay whole than compute its query twice."""
    labels = [(first, *[5] * 29) for first in range(8, 10)]
    call = Tokens([5] * 90, [[6]] * items)
    asked = request(None, call, labels, log_scores=True)
    plan = ScoringPlan(QueryCache(100, 10, caching=False), budget := 2_048)
    parts, done = [], 0
    while done < items:
        part = plan.take(asked, done, budget, at_least_one=True)
        parts.append(part.job.prompt)
        done = part.done or items
    assert sum(len(part.item_lengths) for part in parts) == items
    assert max(part.rows_read for part in parts) <= LABEL_ROWS
    # The control: what may be read at once stays whole.
    assert (len(parts) == 1) == (items * 59 <= LABEL_ROWS)


MANY = Limits.max_labels + 1


def checked(call: Tokens, ids: list[int], options: ScoreOptions, facts: CheckpointFacts = FACTS) -> None:
    labels, lengths = np.array(ids, np.int32), options.label_lengths
    if not facts.is_classifier:
        check_labels(labels, Limits(), facts, options.label_counts, len(call.items), lengths)
    with_tries(call.prompt(), labels, lengths, None, options, Limits(), facts)


@pytest.mark.parametrize(
    ("ids", "options", "says"),
    [
        (
            [1, 2, 3],
            {"label_lengths": (1, 1)},
            "'label_lengths' adds up to 2, but 'label_token_ids' holds 3 tokens",
        ),
        ([], {"label_lengths": ()}, "'label_token_ids' is empty: this model needs at least one label"),
        ([1, 2, 1, 2], {"label_lengths": (2, 2)}, "labels 0 and 1 are the same tokens"),
        (
            [1, 2, 1, 2],
            {"label_lengths": (2, 2), "label_counts": (2,)},
            "labels 0 and 1 of item 0 are the same",
        ),
        (
            [1, 2, 3],
            {"label_lengths": (2, 1), "label_counts": (3,)},
            "'label_counts' adds up to 3, but 2 labels",
        ),
        (
            [1] * 195,
            {"label_lengths": (195,)},
            r"query, item 0 and a label have 201 tokens together: at most 200",
        ),
        ([7] * (2 * MANY), {"label_lengths": (2,) * MANY}, rf"holds {MANY} labels: at most \d+ in one call"),
        (
            [token for first in range(60) for token in (first, *[5] * 149)],
            {"label_lengths": (150,) * 60},
            "the labels of item 0 are read at 8941 tokens: at most 8192 for one item",
        ),
        ([1, VOCABULARY], {"label_lengths": (2,)}, f"holds {VOCABULARY}: ids of this model are 0 to"),
        ([1, 2], {"normalize": "bytes"}, "give 'labels' as text, token ids have none"),
        ([1, 2], {"label_lengths": (2,), "raw_logits": True}, "a label of several tokens has no logit"),
    ],
)
def test_labels_that_cannot_be_scored_are_refused_by_name(ids, options, says: str) -> None:
    with pytest.raises(RequestError, match=says):
        checked(Tokens([5], [[6, 7, 8, 9, 10]]), ids, ScoreOptions(**options))


def test_too_much_work_a_classifier_and_two_rotary_tables_are_refused() -> None:
    call, labels = Tokens([5] * 90, [[6]] * 50), [(8, token, 3) for token in range(10, 20)]
    prompt = request(None, call, labels, log_scores=True).prompt
    check_computed(prompt, Limits())
    # As large as each limit allows, and one more.
    check_computed(prompt, Limits(max_call_tokens=prompt.computed))
    with pytest.raises(RequestError, match=f"make {prompt.computed} tokens to compute: at most"):
        check_computed(prompt, Limits(max_call_tokens=prompt.computed - 1))
    ids, told = np.array([token for label in labels for token in label], np.int32), 50 * 30 * 8
    options = ScoreOptions(token_logprobs=3)
    with_tries(call.prompt(), ids, [3] * 10, None, options, Limits(max_call_tokens=told), FACTS)
    # Nothing is made of labels that are too many.
    twice = np.concatenate([ids[:3], ids[:-3]])
    with pytest.raises(RequestError, match="have 1500 tokens, with 8 values each"):
        with_tries(call.prompt(), twice, [3] * 10, None, options, Limits(max_call_tokens=told - 1), FACTS)
    with pytest.raises(RequestError, match="have 1500 tokens, with 8 values each"):
        with_tries(call.prompt(), ids, [3] * 10, None, options, Limits(max_call_tokens=told - 1), FACTS)
    classifier = replace(FACTS, is_classifier=True)
    for refused in (ScoreOptions(log_scores=True), ScoreOptions(normalize="tokens"), options):
        with pytest.raises(RequestError, match="this model is a classifier"):
            checked(call, [], refused, classifier)
    LongropeTables(93, 200).of(prompt)  # the longest path ends at 93
    with pytest.raises(RequestError, match="item 0 and its labels reach beyond 92 tokens"):
        LongropeTables(92, 200).of(prompt)
