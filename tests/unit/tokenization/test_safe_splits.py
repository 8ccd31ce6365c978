"""A split is safe: both parts encoded separately give the tokens of the whole. Wrong rules must be caught."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers

from hiscore.tokenization import safe_splits
from tests.support import tiny_tokenizers as tiny
from tests.support.examples import has_example
from tests.support.tiers import first_of

WITH_SAFE_SPLITS = {name: build() for name, build in tiny.WITH_PATTERNS.items()}

WORDS = (
    "a B Yes item ' 's 'RE ’s ſ ﬆ ß K ŉ ͅ 1 23 456 Ⅷ ½ ٣ ! ... / // - _ < |> é e\u0301 \u0301 "
    "\u0327 \u200b \u200d \ufeff 苹 果 か か\u3099 ハ\u309a 。 ， ？ ᄀ ᅡ 가 한 豈 𠀀 👩\u200d👧 🍎"
)
# Whitespace of all kinds, what composes or folds, what patterns treat apart, and added tokens.
FRAGMENTS = [
    *" \n\t\x0b\x1c\x85\u00a0\u1680\u2000\u2028\u3000",
    "  ",
    "\r\n",
    *WORDS.split(),
    *("<|im_start|>", "<|im_end|>", "<think>", "<tool_call>", "<|endoftext|>"),
]
TEXTS = st.lists(st.sampled_from(FRAGMENTS) | st.characters(exclude_categories=["Cs"]), max_size=12).map(
    "".join
)

# Rules that look sensible and are wrong for every tokenizer with safe splits.
WRONG_RULES = {
    "before any space": re.compile(" "),
    "in a word": re.compile(r"(?<=[a-z])(?=[a-z])"),
    "after a space": re.compile(r"(?<= )(?=\S)"),
}


def ids(backend: Tokenizer, text: str) -> list[int]:
    return backend.encode(text, add_special_tokens=False).ids


def holds(backend: Tokenizer, text: str, rule: re.Pattern[str] = safe_splits.SPLIT_POINT) -> bool:
    """Whether every place that the rule finds in a text is safe in it."""
    whole = ids(backend, text)
    places = {match.start() for match in rule.finditer(text)}
    return all(ids(backend, text[:place]) + ids(backend, text[place:]) == whole for place in places)


@pytest.mark.parametrize("name", first_of(*WITH_SAFE_SPLITS, others=pytest.mark.slow))
@settings(max_examples=300)
@given(
    TEXTS, st.sampled_from([" ", "a b", "苹果，是", "! x", "e\u0301 \u0301", "<think> <tool_call>"]), TEXTS
)
def test_both_parts_give_the_tokens_of_the_whole(name: str, left: str, middle: str, right: str) -> None:
    assert holds(WITH_SAFE_SPLITS[name], left + middle + right)


@pytest.mark.parametrize("rule", WRONG_RULES)
@pytest.mark.parametrize("name", WITH_SAFE_SPLITS)
def test_a_wrong_rule_is_caught(name: str, rule: str) -> None:
    words = st.lists(st.sampled_from(["  ", " ", "Is", "this", "a", "fruit", "\n"]), max_size=6).map("".join)
    assert has_example(words, lambda text: not holds(WITH_SAFE_SPLITS[name], text, WRONG_RULES[rule]))


@pytest.mark.slow
@pytest.mark.parametrize("pattern", sorted(safe_splits.SAFE_PATTERNS))
@settings(max_examples=300)
@given(TEXTS, st.sampled_from([" ", "a b", "苹，", "! "]), TEXTS)
def test_every_pattern_splits_at_every_split_point(pattern: str, left: str, middle: str, right: str) -> None:
    """Sharper than comparing tokens: merges may hide a piece that crosses a split point."""
    text = left + middle + right
    starts = {start for _, (start, _) in _split(pattern).pre_tokenize_str(text)}
    assert {match.start() for match in safe_splits.SPLIT_POINT.finditer(text)} <= starts


@pytest.mark.slow
@settings(max_examples=300)
@given(TEXTS)
def test_byte_level_has_the_gpt2_pattern(text: str) -> None:
    built_in = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    found, expected = (
        [span for _, span in each.pre_tokenize_str(text)] for each in (built_in, _split(safe_splits.GPT2))
    )
    assert found == expected


@pytest.mark.parametrize("name", WITH_SAFE_SPLITS)
def test_known_tokenizers_are_recognised(name: str) -> None:
    assert safe_splits.has_safe_splits(WITH_SAFE_SPLITS[name])


def altered(backend: Tokenizer, **changes: object) -> Tokenizer:
    """The same tokenizer with other parts, and with a token `added`."""
    for name, value in changes.items():
        if name == "added":
            backend.add_tokens([value])
        else:
            setattr(backend, name, value)
    return backend


def _with(**changes: object) -> Tokenizer:
    return altered(tiny.qwen2(), **changes)


def _sequence(*steps: pre_tokenizers.PreTokenizer) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(list(steps))


def _split(pattern: str, behavior: str = "isolated", invert: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Split(Regex(pattern), behavior=behavior, invert=invert)


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
UNSAFE = {
    "metaspace": tiny.metaspace(),
    "added token with a split point": _with(added=AddedToken("fruit ?", normalized=False)),
    # U+F900 is no ideograph of a split point until it is normalised.
    "added token with one once normalised": _with(added=AddedToken("\uf900。", normalized=True)),
    "added token that takes spaces on its left": _with(added=AddedToken("<mask>", lstrip=True)),
    "added token that takes spaces on its right": _with(added=AddedToken("<mask>", rstrip=True)),
    "added token that looks around": _with(added=AddedToken("<mask>", single_word=True)),
    "other normalizer": _with(normalizer=normalizers.NFKC()),
    "stripping normalizer": _with(normalizer=normalizers.Strip()),
    "no pre-tokenizer": _with(pre_tokenizer=None),
    "bytes before the pattern": _with(pre_tokenizer=_sequence(BYTES, _split(safe_splits.QWEN2))),
    "unknown pattern": _with(pre_tokenizer=_sequence(_split(r"\w+ ?|\s+"), BYTES)),
    "unknown pattern beside a known one": _with(
        pre_tokenizer=_sequence(_split(safe_splits.GPT2), _split("a b"), BYTES)
    ),
    "matches removed": _with(pre_tokenizer=_sequence(_split(safe_splits.QWEN2, "removed"), BYTES)),
    "matches joined": _with(pre_tokenizer=_sequence(_split(safe_splits.QWEN2, "merged_with_next"), BYTES)),
    "inverted": _with(pre_tokenizer=_sequence(_split(safe_splits.QWEN2, invert=True), BYTES)),
    "digits alone": _with(pre_tokenizer=_sequence(pre_tokenizers.Digits(), BYTES)),
    "prefix space": _with(pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "dropout": _with(model=models.BPE(dropout=0.1)),
    "other model": _with(model=models.WordPiece()),
}


@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_not_proved_is_not_recognised(name: str) -> None:
    assert not safe_splits.has_safe_splits(UNSAFE[name])


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["metaspace", "added token with a split point", "added token with one once normalised", "digits alone"],
)
def test_the_rule_is_wrong_where_it_is_not_recognised(name: str) -> None:
    """The control of recognition: without it, ids would be wrong."""
    words = st.lists(
        st.sampled_from([" ", "fruit", "?", "the", "item", "is", " is", "\u8c48", "。"]), max_size=6
    ).map("".join)
    backend = UNSAFE[name]
    if name == "digits alone":
        tiny.train(backend)
    assert has_example(words, lambda text: not holds(backend, text))
