"""Requests in text: the ids are those of one item at a time, and an error affects no other request."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers
from transformers import AutoTokenizer

from hiscore.decoding.engine.intake import PromptReader
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.scoring.text import label_contexts
from hiscore.scoring.text.encode import RequestEncoder, TokenizedRequest
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Limits
from hiscore.tokenization.split_rule import SplitRule
from hiscore.tokenization.text_encoder import TextEncoder
from hiscore.tokenization.tokenizer import TextTokenizer, load_tokenizer
from tests.support import tiny_tokenizers as tiny
from tests.support.encoding import encode_requests, limits_of, sequences
from tests.support.examples import has_example
from tests.support.tiers import first_of
from tests.unit.tokenization.test_safe_splits import TEXTS

BUILDERS = {**tiny.WITH_SAFE_SPLITS, **tiny.WITHOUT_SAFE_SPLITS}
FACTS = CheckpointFacts(vocab_size=2_000, context_length=500, is_classifier=False)
CLASSIFIER = replace(FACTS, is_classifier=True)
LABELS = np.array([5, 6], np.int32)


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[TextTokenizer, Any]]:
    """Our tokenizer and the reference, from the same directory."""

    @cache
    def get(name: str) -> tuple[TextTokenizer, Any]:
        directory = tiny.save(BUILDERS[name](), tmp_path_factory.mktemp(name))
        return load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)

    return get


Load = Callable[[str], tuple[TextTokenizer, Any]]


DEFAULTS = Limits()


def one(
    tokenizer: TextTokenizer, call: TextRequest, facts: CheckpointFacts = FACTS, limits: Limits = DEFAULTS
) -> TokenizedRequest:
    (answer,) = encode_requests(tokenizer, [call], limits, facts)
    if isinstance(answer, RequestError):
        raise answer
    return answer


def true_to(truth: Any, answer: TokenizedRequest, call: TextRequest) -> bool:
    texts = [item + call.query if call.item_first else call.query + item for item in call.items]
    return sequences(answer.prompt) == [truth(text)["input_ids"] for text in texts]


REQUESTS = st.builds(
    TextRequest,
    query=st.one_of(TEXTS, TEXTS.map("The item is: {} ".format), st.just("苹果是水果吗？是的，")),
    items=st.lists(st.one_of(st.just(""), TEXTS), min_size=1, max_size=5),
    label_token_ids=st.just(LABELS),
    item_first=st.booleans(),
)


@pytest.mark.parametrize("name", first_of(*BUILDERS, others=pytest.mark.slow))
@settings(max_examples=150)
@given(batch=st.lists(REQUESTS, max_size=3))
def test_ids_are_those_of_one_item_at_a_time(name: str, load: Load, batch: list[TextRequest]) -> None:
    ours, truth = load(name)
    assert (ours.splits is not None) == (name in tiny.WITH_SAFE_SPLITS)
    for call, answer in zip(batch, encode_requests(ours, batch, Limits(), FACTS), strict=True):
        texts = [item + call.query for item in call.items]
        if isinstance(answer, RequestError):
            assert "both empty" in answer.message
            assert any(truth(text)["input_ids"] == [] for text in texts)
            continue
        assert true_to(truth, answer, call)
        query_length = answer.prompt.query_length
        following = {tuple(ids[query_length : query_length + 1]) for ids in sequences(answer.prompt)}
        if len(call.items) > 1:
            assert () in following or len(following) > 1, "more could have been shared"


@pytest.mark.parametrize("name", tiny.WITH_SAFE_SPLITS)
def test_a_wrong_split_is_caught(name: str, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, truth = load(name)
    monkeypatch.setattr(SplitRule, "last", lambda rule, text: len(text) // 2)
    monkeypatch.setattr(SplitRule, "first", lambda rule, text: len(text) // 2)
    words = st.lists(st.sampled_from([" ", "fruit", "The", " item", "is"]), min_size=1, max_size=4).map(
        "".join
    )

    def wrong(call: TextRequest) -> bool:
        return not true_to(truth, one(ours, call), call)

    for item_first in (False, True):
        items, first = st.lists(words, min_size=1), st.just(item_first)
        assert has_example(st.builds(TextRequest, words, items, st.none(), st.just(LABELS), first), wrong)


class Spy(TextEncoder):
    def __init__(self, backend: Tokenizer) -> None:
        super().__init__(backend)
        self.batches: list[Sequence[str]] = []

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        self.batches.append(texts)
        return super().encode(texts)


@pytest.mark.parametrize("item_first", [False, True])
def test_all_texts_go_through_one_call_and_the_query_once(load: Load, item_first: bool) -> None:
    ours, _ = load("smollm2")
    spy = Spy(ours.backend)
    query = "this is " * 40
    batch = [TextRequest(query, [" apple"] * 30, labels=[" Yes", " No"], item_first=item_first)] * 3
    answers = encode_requests(replace(ours, encoder=spy), batch, Limits(), FACTS)
    assert [answer.full_encode for answer in answers if isinstance(answer, TokenizedRequest)] == [False] * 3
    [texts] = spy.batches
    assert len(texts) == 3 * (1 + 30 + 2)
    # A word of the query and the item itself, for each item.
    assert sum(map(len, texts)) <= 3 * (len(query) + 30 * len("this is apple") + len(" Yes No"))


@pytest.mark.parametrize("name", BUILDERS)
def test_the_query_of_a_single_item_ends_before_the_item(name: str, load: Load) -> None:
    """Everything was query: cached queries gave way to items."""
    ours, truth = load(name)
    query = "Is this a fruit? " * 20 + "The item is:"
    calls = [TextRequest(query, [f" an apple, {n} hammers and {n} screws"], None, LABELS) for n in range(3)]
    answers = [one(ours, call) for call in calls]
    whole = truth(query)["input_ids"]
    if name == "twice":
        whole = whole[: len(whole) // 2]
    for call, answer in zip(calls, answers, strict=True):
        assert true_to(truth, answer, call)
        length = answer.prompt.query_length
        assert np.array_equal(
            answer.prompt.tokens[:length], answers[0].prompt.tokens[: answers[0].prompt.query_length]
        )
        # All of it but the last word, at most.
        assert len(whole) - 8 <= length <= len(whole)


def test_what_has_too_many_tokens_is_refused_before_it_is_encoded(load: Load) -> None:
    """A text of 6 MB was encoded for seconds, only to be refused."""
    ours, _ = load("qwen2")
    assert ours.bytes_per_token is not None
    most = ours.bytes_per_token * FACTS.context_length
    spy = Spy(ours.backend)
    tokenizer = replace(ours, encoder=spy)
    limits = limits_of(10 * most)
    good = TextRequest("a b", ["c"], None, LABELS)
    for call in (
        replace(good, query="a" * (most + 1)),
        replace(good, items=["c", "a" * (most - 2)]),
        replace(good, query="苹" * (most // 3), items=["ab" * 2]),
    ):
        [refused] = encode_requests(tokenizer, [call], limits, FACTS)
        assert isinstance(refused, RequestError)
        assert f"at most {most} can be 500 tokens" in refused.message
    assert sum(len(text) for batch in spy.batches for text in batch) == 0
    # The control: one byte less may fit, so it is encoded.
    encode_requests(tokenizer, [replace(good, items=["c", "a" * (most - 3)])], limits, FACTS)
    assert sum(len(text) for batch in spy.batches for text in batch) > most - 4
    prompts = PromptReader(FACTS, tokenizer, max_text_bytes=10 * most)
    before = len(spy.batches)
    with pytest.raises(RequestError, match=f"'text_input' holds {most + 1} bytes: at most {most} can be"):
        prompts.read(None, "a" * (most + 1), SamplingParams())
    assert len(spy.batches) == before


def test_a_request_costs_the_bytes_that_are_encoded_for_it(load: Load) -> None:
    """Queries that cannot be split are encoded with every item, and a batch of them took minutes."""
    call = TextRequest("Is this one", ["苹", " b"], labels=["x"])
    for name, repeated in (("qwen2", " one"), ("llama2", " one"), ("metaspace", "Is this one")):
        plan = RequestEncoder(load(name)[0], Limits(), FACTS).plan(call)
        assert plan.cost == len("Is this one") + 3 + 2 + 1 + len(repeated), name


def test_full_encodes_are_reported(load: Load) -> None:
    for name, query, full in [
        ("metaspace", "one two", True),
        ("twice", "one two", True),
        ("qwen2", "onetwo", True),
        ("qwen2", "one two", False),
        ("qwen2", "苹果是水果吗，苹果", False),
        ("qwen2", "", False),
    ]:
        ours, _ = load(name)
        assert one(ours, TextRequest(query, ["a", "b"], None, LABELS)).full_encode == full, (name, query)
        assert not one(ours, TextRequest(query, ["a"], None, LABELS)).full_encode, (
            "a single item costs nothing more"
        )


@pytest.mark.parametrize("name", BUILDERS)
def test_no_items_leave_the_query(name: str, load: Load) -> None:
    ours, truth = load(name)
    answer = one(ours, TextRequest("Is this a fruit?", [], None, LABELS))
    assert answer.prompt.tokens.tolist() == truth("Is this a fruit?")["input_ids"]
    assert answer.prompt.query_length == len(answer.prompt.tokens)


def test_arrays_are_int32(load: Load) -> None:
    answer = one(load("gpt2")[0], TextRequest("a b", ["c"], labels=[" Yes"]))
    assert {a.dtype for a in (answer.prompt.tokens, answer.label_token_ids)} == {np.dtype("int32")}


def test_labels_are_single_tokens_encoded_alone(load: Load) -> None:
    ours, truth = load("llama3")
    labels = [" Yes", " No", "<|im_end|>"]
    answer = one(ours, TextRequest("a b", ["c"], labels=labels))
    wanted = [truth(label, add_special_tokens=False)["input_ids"] for label in labels]
    assert [[ids] for ids in answer.label_token_ids.tolist()] == wanted


@pytest.mark.parametrize("name", first_of(*BUILDERS, others=pytest.mark.exhaustive))
def test_labels_of_several_tokens_are_encoded_as_they_follow_each_item(name: str, load: Load) -> None:
    """Prompt and label are one text to the reference, or the call is refused."""
    ours, truth = load(name)
    labels = [" not relevant", "\n\nno one", "苹果 ok", "s it", "1 2", " x"]
    served = 0
    for query, items in [
        ("", ["a b", "x b"]),
        ("Is it? ", ["an apple", "12"]),
        ("ab", ["c", ""]),
        ("苹", ["果"]),
    ]:
        for item_first, label in product((False, True), labels):
            call = TextRequest(query, items, [label], item_first=item_first)
            (answer,) = encode_requests(ours, [call], DEFAULTS, FACTS)
            texts = [item + query if item_first else query + item for item in items]
            prompts = [truth(text)["input_ids"] for text in texts]
            wholes = [truth(text + label)["input_ids"] for text in texts]
            suffix = len(ours.suffix)
            is_one = not isinstance(answer, RequestError) and len(answer.label_token_ids) == 1
            if isinstance(answer, RequestError):
                ends = {
                    str(whole[len(prompt) :]) if whole[: len(prompt)] == prompt else None
                    for prompt, whole in zip(prompts, wholes, strict=True)
                }
                assert len(ends) > 1 or None in ends or not ours.adds_affixes, answer
            elif not is_one and not suffix:
                served += 1
                for prompt, whole in zip(prompts, wholes, strict=True):
                    assert [*prompt, *answer.label_token_ids.tolist()] == whole
                assert answer.label_sizes.tolist() == [[len(answer.label_token_ids)]]
    assert served or ours.suffix or not ours.adds_affixes


def test_many_items_with_many_labels_are_refused_before_all_are_laid_out(
    load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of a few KB would else take gigabytes."""
    made: list[Any] = []
    place = label_contexts.Place
    monkeypatch.setattr(label_contexts, "Place", lambda *of: made.append(of) or place(*of))
    request = TextRequest("q", [f"x{n}" for n in range(1_000)], [f" no way {n}" for n in range(50)])
    alone = [[1, 2]] * 50
    with pytest.raises(RequestError, match="more than 3000 bytes"):
        label_contexts.encode_behind(load("qwen2")[0], request, alone, most_bytes=3_000)
    assert len(made) < 3_000


def test_a_classifier_has_no_labels(load: Load) -> None:
    ours, _ = load("qwen2")
    for nothing in (None, np.empty(0, np.int32)):
        answer = one(ours, TextRequest("a b", ["c"], None, nothing), CLASSIFIER)
        assert answer.label_token_ids.shape == (0,)


def asked(
    query: str = "a b", items: Sequence[str] = ("c",), labels: list[str] | None = None, ids: Any = LABELS
) -> TextRequest:
    return TextRequest(query, [*items], labels, ids)


def labelled(*labels: str) -> TextRequest:
    return asked(labels=[*labels], ids=None)


AGAIN = "encoded again with each of 40 items"
BAD = {
    "label of no token": (labelled(""), "label '' is 0 tokens: a label needs at least one"),
    "label that joins": (
        replace(labelled("s so"), items=[" Ye"]),
        r"label 's so' and .* ' Ye' at item 0, become other tokens together",
    ),
    "label that differs": (
        replace(labelled("s so"), items=["c", " Ye"]),
        r"label 's so' and .*at item 1, become other tokens",
    ),
    "labels of the same tokens": (labelled(" Maybe so", " é so", " e\u0301 so"), "are the same tokens"),
    "labels cut in text": (
        replace(labelled(" Yes"), label_lengths=[1]),
        "'label_lengths' cuts 'label_token_ids': it does not go with 'labels'",
    ),
    "labels cut wrongly": (replace(asked(), label_lengths=[1, 2]), "adds up to 3, but .* holds 2 tokens"),
    "work of labels": (
        replace(labelled("x" * 1_400), items=["c", "d", "e"]),
        "encoded with the text before them, more than 3000 bytes in all",
    ),
    "labels of one token": (labelled("é", "e\u0301"), "labels 'é' and 'é' are the same token"),
    "no label input": (asked(ids=None), "exactly one of 'labels' and 'label_token_ids' .* neither was given"),
    "both label inputs": (asked(labels=[" Yes"]), "exactly one .* both were given"),
    "empty labels": (labelled(), "'labels' is empty"),
    "label id out of the vocabulary": (asked(ids=np.array([2_000], np.int32)), "holds 2000.*0 to 1999"),
    "both empty": (asked("", ["a", ""]), "query and item 1 are both empty"),
    "context": (asked("a b " * 100, ["c " * 110, "d"]), r"tokens together: at most 500 \(MAX_CONTEXT\)"),
    "items": (asked(items=["c"] * 41), "'items' holds 41 items: at most 40"),
    "bytes": (asked("苹" * 1_000), "hold 3001 bytes: at most 3000 in one call"),
    "bytes as counted by the caller": (replace(asked(), text_bytes=3_001), "hold 3001 bytes: at most 3000"),
    "work": (asked("x" * 100, ["c"] * 40), f"{AGAIN}, 4000 bytes .* 3000"),
    "work in bytes": (asked("苹" * 30, ["c"] * 40), f"{AGAIN}, 3600 bytes .* 3000"),
    "tokens": (asked(items=[f" {n} x y z" * 4 for n in range(40)]), r"holds \d+ tokens: at most 800"),
}
LIMITS = limits_of(3_000, max_items=40, max_call_tokens=800)

# As large as is allowed, by each of the limits.
GOOD = {
    "items": TextRequest("a b", ["c"] * 40, None, LABELS),
    "labels": TextRequest("a b", ["c"], None, np.arange(1_000, dtype=np.int32)),
    "bytes": TextRequest("苹" * 999 + "xy", ["z"], None, LABELS),
    "bytes as counted by the caller": TextRequest("a b", ["c"], None, LABELS, text_bytes=3_000),
    "work": TextRequest("x" * 75, ["c"] * 40, None, LABELS),
}


@pytest.mark.parametrize("limit", GOOD)
def test_a_request_at_a_limit_is_served(limit: str, load: Load) -> None:
    limits = LIMITS.model_copy(update={"max_call_tokens": 10_000})
    one(load("qwen2")[0], GOOD[limit], replace(FACTS, context_length=10_000), limits)


@pytest.mark.parametrize("what", BAD)
def test_a_bad_call_fails_alone(what: str, load: Load) -> None:
    ours, truth = load("qwen2")
    bad, message = BAD[what]
    good = [
        TextRequest("Is it? ", ["an apple", "12"], labels=[" Yes", " No"]),
        TextRequest("Is it? ", ["x"], None, LABELS),
    ]
    first, refused, last = encode_requests(ours, [good[0], bad, good[1]], LIMITS, FACTS)
    assert isinstance(refused, RequestError)
    assert re.search(message, refused.message)
    for call, answer in zip(good, (first, last), strict=True):
        assert isinstance(answer, TokenizedRequest)
        assert true_to(truth, answer, call)


@pytest.mark.parametrize("name", ["labels", "label_token_ids"])
def test_a_classifier_refuses_labels(name: str, load: Load) -> None:
    labels = {"labels": [" Yes"], "label_token_ids": LABELS}[name]
    with pytest.raises(RequestError, match=f"'{name}' must not be given: this model is a classifier"):
        one(load("qwen2")[0], TextRequest("a b", ["c"], **{name: labels}), CLASSIFIER)


def test_truncation_and_padding_of_a_checkpoint_are_off(tmp_path: Path) -> None:
    backend = tiny.qwen2()
    backend.enable_truncation(4)
    backend.enable_padding(length=16)
    ours = load_tokenizer(tiny.save(backend, tmp_path))
    assert (
        len(sequences(one(ours, TextRequest("one two three four five ", ["six"], None, LABELS)).prompt)[0])
        > 4
    )
    assert len(sequences(one(ours, TextRequest("a", [""], None, LABELS)).prompt)[0]) == 1


def test_split_special_tokens_of_a_checkpoint_holds(tmp_path: Path) -> None:
    backend = tiny.qwen2()
    directory = tiny.save(backend, tmp_path)
    plain = load_tokenizer(directory)
    config = directory / "tokenizer_config.json"
    config.write_text(config.read_text().replace("{", '{"split_special_tokens": true,', 1))
    call = TextRequest("a <|im_start|>", ["b<|im_end|>", "c"], None, LABELS)
    split = load_tokenizer(directory)
    assert true_to(AutoTokenizer.from_pretrained(directory), one(split, call), call)
    assert len(one(split, call).prompt.tokens) > len(one(plain, call).prompt.tokens)


def test_an_unsafe_added_token_turns_safe_splits_off_and_ids_stay_true(tmp_path: Path) -> None:
    backend = tiny.smollm2()
    backend.add_tokens([AddedToken("fruit ?", normalized=False)])
    directory = tiny.save(backend, tmp_path)
    ours, call = load_tokenizer(directory), TextRequest("Is it a fruit ", ["?", "!"], None, LABELS)
    answer = one(ours, call)
    assert answer.full_encode
    assert true_to(AutoTokenizer.from_pretrained(directory), answer, call)


@pytest.mark.slow
def test_a_text_on_which_the_library_panics_fails_alone() -> None:
    """A panic is not an `Exception`: it would end the thread that encodes for everyone."""
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    # Its search doubles with each letter, until the library's own limit.
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+b"), "isolated")
    with pytest.raises(BaseException, match="retry-limit") as raised:
        backend.encode("a" * 40)
    assert not isinstance(raised.value, Exception), "this library does not panic any more: use another text"
    tokenizer = TextTokenizer(
        backend, TextEncoder(backend), adds_affixes=True, prefix=(), suffix=(), splits=None
    )
    good = TextRequest("ab", ["a", "b"], label_token_ids=LABELS)
    bad = replace(good, query="a" * 40)
    before, refused, after = encode_requests(tokenizer, [good, bad, good], Limits(), FACTS)
    assert isinstance(refused, RequestError)
    assert "cannot encode" in refused.message
    for answer in (before, after):
        assert isinstance(answer, TokenizedRequest)
        assert sequences(answer.prompt) == [[0, 1, 0], [0, 1, 1]]
    prompts = PromptReader(FACTS, tokenizer, max_text_bytes=100)
    with pytest.raises(RequestError, match="cannot encode 'text_input'"):
        prompts.read(None, bad.query, SamplingParams())
    assert prompts.read(None, "ab", SamplingParams()).tolist() == [0, 1]
