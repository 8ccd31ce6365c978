"""Splits before a word-initial mark are safe: against the full encoding, with wrong rules as the control."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from hiscore.tokenization.mark_splits import mark_split_rule
from hiscore.tokenization.split_rule import SplitRule
from tests.support import tiny_tokenizers as tiny
from tests.support.examples import has_example
from tests.unit.tokenization.test_safe_splits import TEXTS, altered, ids

WITH_MARKS = {name: build() for name, build in tiny.WITH_MARKS.items()}
MIDDLES = st.sampled_from(
    [" ", "a b", "▁ b", "a ▁", "! <s>", "</s> x", "<unk> <s>", "苹 果", "a\u0301 \u0301b", "x <"]
)


def holds(backend: Tokenizer, text: str, rule: SplitRule) -> bool:
    """Whether every place that the rule finds in a text is safe in it."""
    whole = ids(backend, text)
    places = {match.start() for match in rule.point.finditer(text)}
    return all(ids(backend, text[:at]) + ids(backend, rule.second(text[at:])) == whole for at in places)


def rule_of(backend: Tokenizer) -> SplitRule:
    rule = mark_split_rule(backend)
    assert rule is not None
    return rule


@pytest.mark.slow
@pytest.mark.parametrize("name", WITH_MARKS)
@settings(max_examples=400)
@given(TEXTS, MIDDLES, TEXTS)
def test_both_parts_give_the_tokens_of_the_whole(name: str, left: str, middle: str, right: str) -> None:
    rule = rule_of(WITH_MARKS[name])
    assert rule.adds_space == (name == "llama2")
    assert rule.last("The item is: an") == 12
    assert holds(WITH_MARKS[name], left + middle + right, rule)


@pytest.mark.parametrize("name", WITH_MARKS)
@pytest.mark.parametrize("wrong", ["in a word", "after a space", "without the space"])
def test_a_wrong_rule_is_caught(name: str, wrong: str) -> None:
    backend = WITH_MARKS[name]
    rule = rule_of(backend)
    rules = {
        "in a word": SplitRule(re.compile(r"(?<=[a-z])(?=[a-z])"), rule.adds_space),
        "after a space": SplitRule(re.compile(r"(?<= )(?=\S)")),
        "without the space": SplitRule(rule.point, not rule.adds_space),
    }
    if wrong == "after a space" and name == "metaspace_always":
        rules[wrong] = SplitRule(re.compile(" "), True)
    words = st.lists(st.sampled_from(["  ", " ", "▁", "Is", "this", "a", "fruit", "<s>"]), max_size=6)
    assert has_example(words.map("".join), lambda text: not holds(backend, text, rules[wrong]))


def _inner_mark() -> Tokenizer:
    """A vocabulary in which one merge of many crosses words."""
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁b": 4, "a▁b": 5}
    backend = Tokenizer(models.BPE(vocab, [("▁", "b"), ("a", "▁b")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return backend


def _whole_words() -> Tokenizer:
    """`ignore_merges`: a text that is a piece is one token, though merges do not lead there."""
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "b": 3, "▁ab": 4}
    backend = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return backend


def _no_mark() -> Tokenizer:
    """The mark is unknown: a run of unknown characters is one token, across words."""
    backend = Tokenizer(models.BPE({"<unk>": 0, "a": 1}, [], unk_token="<unk>", fuse_unk=True))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    return backend


UNSAFE = {
    "a piece with an inner mark": _inner_mark(),
    "whole words": _whole_words(),
    "an unknown mark": _no_mark(),
    "trained across words": tiny.metaspace(),
    "unigram over the whole text": altered(
        tiny.unigram(), pre_tokenizer=pre_tokenizers.Metaspace(split=False)
    ),
    "dropout": altered(tiny.llama2(), model=models.BPE(dropout=0.1)),
    "added token with a split point": altered(tiny.gemma(), added=AddedToken("fruit ?", normalized=False)),
    "added token with a mark": altered(tiny.gemma(), added=AddedToken("fruit▁?", normalized=False)),
    "added token of a space": altered(tiny.llama2(), added=AddedToken(" ", normalized=False)),
    "added token that takes spaces": altered(tiny.gemma(), added=AddedToken("<mask>", lstrip=True)),
    "added token that looks around": altered(tiny.gemma(), added=AddedToken("<mask>", single_word=True)),
    "other normalizer": altered(tiny.metaspace_first(), normalizer=normalizers.NFKC()),
    "other prefix": altered(
        tiny.llama2(),
        normalizer=normalizers.Sequence([normalizers.Prepend("x"), normalizers.Replace(" ", "▁")]),
    ),
    "other pre-tokenizer": altered(tiny.gemma(), pre_tokenizer=pre_tokenizers.Whitespace()),
    "no marks": altered(tiny.gemma(), normalizer=None),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_not_proved_is_not_recognised(name: str) -> None:
    assert mark_split_rule(UNSAFE[name]) is None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["a piece with an inner mark", "whole words", "an unknown mark", "trained across words"]
)
def test_the_rule_is_wrong_where_it_is_not_recognised(name: str) -> None:
    """The control of recognition: without it, ids would be wrong."""
    words = st.lists(st.sampled_from([" ", "a", "b", "é", "the", " item", "is"]), max_size=6).map("".join)
    rule = SplitRule(re.compile(r"(?<=[^\s▁]) "))
    assert has_example(words, lambda text: not holds(UNSAFE[name], text, rule))


def test_a_mark_in_the_text_is_no_split() -> None:
    """It is taken for a space, and runs of spaces are pieces of many vocabularies."""
    vocab = {"<unk>": 0, "▁": 1, "a": 2, "▁▁": 3}
    backend = Tokenizer(models.BPE(vocab, [("▁", "▁")], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    assert holds(backend, "a▁ a  a a", rule_of(backend))
    assert not holds(backend, "a▁ a", SplitRule(re.compile(r"(?<=\S) ")))


def test_an_added_token_at_the_split_is_no_split_where_every_piece_gets_a_mark() -> None:
    """There an added token ends a piece, and the next gets a mark of its own."""
    rule = rule_of(WITH_MARKS["llama2"])
    assert rule.last("a b <s>c") == 1
    assert rule.last("a b</s> c") == 1
    assert rule_of(WITH_MARKS["metaspace_first"]).last("a b</s> c") == 7
