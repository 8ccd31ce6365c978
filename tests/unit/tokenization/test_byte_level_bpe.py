"""tiktoken gives the ids of the tokenizers library where that is claimed, and is not used elsewhere."""

from typing import Any

import pytest
import tiktoken
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers
from tokenizers.models import BPE

from hiscore.tokenization import byte_level_bpe as module
from hiscore.tokenization.byte_level_bpe import (
    NEW_DIGITS,
    SEPARATOR,
    ByteLevelBPE,
    byte_level_bpe,
    characters_with,
)
from hiscore.tokenization.safe_splits import GPT2, QWEN2
from hiscore.tokenization.token_bytes import byte_letters
from tests.support import tiny_tokenizers as tiny
from tests.support.tiers import first_of
from tests.unit.tokenization.test_safe_splits import TEXTS, ids

BUILT = {name: build() for name, build in tiny.WITH_PATTERNS.items()}
BPE_OF = {name: found for name, made in BUILT.items() if (found := byte_level_bpe(made))}
CLASSES = [
    *(r"\p{L}", r"\p{N}", r"\s", r"\p{M}", r"\p{Lu}", r"\p{Lt}", r"\p{Lm}", r"\p{Lo}", r"\p{Ll}"),
    r"(?i:[sdmtrevl])",
]
LETTER = {byte: letter for letter, byte in byte_letters().items()}


def spelled(text: str) -> str:
    """A text as byte-level pieces have it."""
    return "".join(LETTER[byte] for byte in text.encode())


def backend(merges: list[tuple[str, str]], pieces: list[str] | None = None, **options: Any) -> Tokenizer:
    """A tokenizer with these merges; pieces: in the order of their ids, if not in that of the merges."""
    pieces = pieces or list(dict.fromkeys(left + right for left, right in merges))
    vocabulary = {piece: number for number, piece in enumerate([*LETTER.values(), *pieces])}
    made = Tokenizer(BPE(vocab=vocabulary, merges=merges, **options))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return made


def encoding_of(pattern: str) -> tiktoken.Encoding:
    """Every byte is a token."""
    ranks = {bytes([byte]): byte for byte in range(256)}
    return tiktoken.Encoding("bytes", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})


EVERYTHING = [chr(each) for each in range(0x110000) if not 0xD800 <= each < 0xE000]


def holds_left_out(bpe: ByteLevelBPE, text: str) -> bool:
    return any(first <= each <= last for each in text for first, last in bpe.left_out)


def by_tiktoken(made: Tokenizer, text: str) -> list[int]:
    bpe = byte_level_bpe(made)
    assert bpe is not None
    return bpe.encoding.encode_ordinary(text)


@pytest.mark.parametrize("name", first_of(*BUILT, others=pytest.mark.slow))
@settings(max_examples=500)
@given(TEXTS)
def test_the_ids_are_those_of_the_tokenizer(name: str, text: str) -> None:
    bpe, normalizer = BPE_OF[name], BUILT[name].normalizer
    added = [token.content for token in BUILT[name].get_added_tokens_decoder().values()]
    if not any(content in text for content in added) and not holds_left_out(bpe, text):
        normalized = normalizer.normalize_str(text) if normalizer else text
        assert bpe.encoding.encode_ordinary(normalized) == ids(BUILT[name], text)


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
@settings(max_examples=300)
@given(st.lists(TEXTS | st.text("a '1s\n", max_size=4), max_size=6))
def test_texts_together_get_the_ids_of_each(name: str, texts: list[str]) -> None:
    bpe = BPE_OF[name]
    texts = [text for text in texts if not holds_left_out(bpe, text)]
    assert bpe.encode(texts) == [bpe.encoding.encode_ordinary(text) for text in texts]


@pytest.mark.slow
@pytest.mark.parametrize("name", BUILT)
@pytest.mark.exhaustive
def test_control_texts_that_are_not_kept_apart_become_other_tokens(name: str) -> None:
    bpe = BPE_OF[name]
    words = [word for text in tiny.CORPUS for word in text.split()]
    apart = [bpe.encode([word[:1], word[1:]]) for word in words]
    assert [[*first, *second] for first, second in apart] != bpe.encode(words)
    assert holds_left_out(bpe, f"a{SEPARATOR}b")


WRONG_PATTERNS = {
    "gpt2": (r" ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+", "B's"),
    "smollm2": (GPT2, "12"),
    "qwen2": (QWEN2.replace("(?i:", "(?:"), "'LLa"),
    "llama3": (QWEN2, "12"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", first_of(*WRONG_PATTERNS))
@pytest.mark.exhaustive
def test_another_pattern_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a vocabulary of all pairs, other pieces give other ids."""
    wrong_pattern, text = WRONG_PATTERNS[name]
    made = backend([(left, right) for left in LETTER.values() for right in LETTER.values()])
    made.pre_tokenizer = BUILT[name].pre_tokenizer
    bpe = byte_level_bpe(made)
    assert bpe

    @settings(max_examples=500, deadline=None)
    @given(st.text("asBLS'12 \n", max_size=8) | TEXTS)
    def check(text: str) -> None:
        if not holds_left_out(bpe, text):
            assert bpe.encoding.encode_ordinary(text) == ids(made, text)

    check()
    monkeypatch.setattr(module, "_pattern", lambda _: wrong_pattern)
    assert by_tiktoken(made, text) != ids(made, text)


@pytest.mark.slow
@pytest.mark.parametrize("class_", CLASSES)
def test_classes_are_the_same_characters_in_both_libraries(class_: str) -> None:
    """Both have tables of Unicode: they differ if one is younger."""
    everything, encoding = "".join(EVERYTHING), encoding_of(class_)
    matched = encoding.decode(encoding.encode_ordinary(everything))
    left = normalizers.Replace(Regex(class_), "").normalize_str(everything)
    assert matched
    assert set(matched) == set(everything) - set(left)


@pytest.mark.slow
def test_digits_that_a_step_alone_knows_are_left_out() -> None:
    encoding = encoding_of(r"\p{N}")
    matched = set(encoding.decode(encoding.encode_ordinary("".join(EVERYTHING))))
    digits = pre_tokenizers.Digits(individual_digits=True)
    split_off = {each for each in EVERYTHING if len(digits.pre_tokenize_str("a" + each)) == 2}
    assert "1" in split_off
    assert BPE_OF["smollm2"].left_out == (*NEW_DIGITS, (SEPARATOR, SEPARATOR))
    assert matched ^ split_off <= {chr(n) for a, b in NEW_DIGITS for n in range(ord(a), ord(b) + 1)}
    # The control: to the pattern the spaces before one are not the end.
    made = backend([(LETTER[0x20], LETTER[0x20])])
    made.pre_tokenizer = BUILT["smollm2"].pre_tokenizer
    assert by_tiktoken(made, "  1") == ids(made, "  1")
    assert by_tiktoken(made, "  \U00011de0") != ids(made, "  \U00011de0")


def test_a_token_that_its_bytes_do_not_become_is_left_out() -> None:
    """`ab` goes first, so `abc` comes from no text."""
    made = backend([("a", "b"), ("b", "c"), ("a", "bc")])
    assert by_tiktoken(made, "abc") == ids(made, "abc") == [made.token_to_id("ab"), made.token_to_id("c")]
    # The control: with it, tiktoken would merge what is not listed.
    ranks = {bytes([byte_letters()[letter] for letter in piece]): n for piece, n in made.get_vocab().items()}
    control = tiktoken.Encoding("control", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={})
    assert control.encode_ordinary("abc") == [made.token_to_id("abc")]


def test_a_token_of_several_merges_is_theirs() -> None:
    """As in vocabularies that were converted from tiktoken's: every pair of tokens that forms one is listed."""
    runs = [spelled(" " * length) for length in range(1, 9)]
    merges = [(runs[i], runs[length - i - 2]) for length in range(2, 9) for i in range(length - 1)]
    made = backend(merges)
    for length in range(40):
        text = " " * length + "x"
        assert by_tiktoken(made, text) == ids(made, text)


@pytest.mark.parametrize(
    "made",
    [
        # Merged in another order than that of their ids.
        backend([("b", "c"), ("a", "b")], ["ab", "bc"]),
        # A piece that is a token is looked up, though its bytes become two others.
        backend([("a", "b"), ("b", "c"), ("a", "bc")], ignore_merges=True),
        backend([("a", "b")], ["ab", "xyz"], ignore_merges=True),
        backend([("a", "b")], dropout=0.5),
        tiny.metaspace(),
        tiny.unigram(),
        tiny.llama2(),
    ],
    ids=["order", "unreachable", "no merge", "dropout", "marks", "unigram", "llama2"],
)
def test_where_nothing_is_claimed_there_is_none(made: Tokenizer) -> None:
    assert byte_level_bpe(made) is None


def behind(first: pre_tokenizers.PreTokenizer, use_regex: bool = False) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [first, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=use_regex)]
    )


@pytest.mark.parametrize(
    "pre_tokenizer",
    [
        pre_tokenizers.ByteLevel(add_prefix_space=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        pre_tokenizers.Whitespace(),
        behind(pre_tokenizers.Digits(individual_digits=False), use_regex=True),
        behind(pre_tokenizers.Split(Regex(QWEN2), "isolated"), use_regex=True),
        behind(pre_tokenizers.Split(Regex(r"\p{L}+"), "isolated")),
        behind(pre_tokenizers.Split(Regex(QWEN2), "removed")),
        behind(pre_tokenizers.Split(Regex(QWEN2), "isolated", invert=True)),
    ],
    ids=str,
)
def test_nor_is_there_one_for_other_ways_to_split(pre_tokenizer: pre_tokenizers.PreTokenizer) -> None:
    made = backend([("a", "b")])
    assert byte_level_bpe(made)
    made.pre_tokenizer = pre_tokenizer
    assert byte_level_bpe(made) is None


def test_of_tokens_that_are_looked_up_only_the_added_in_ascii_may_be_unreachable() -> None:
    """The vocabulary's `Ġa` is a space and an a; the added one is found where it is written so."""
    for content, is_claimed in (("<a>", True), (spelled(" a"), False), (spelled("é"), False)):
        made = backend([("b", "c")], ["bc", content], ignore_merges=True)
        assert byte_level_bpe(made) is None
        made.add_special_tokens([content])
        assert (byte_level_bpe(made) is not None) is is_claimed
    assert ids(made, "é") == [made.token_to_id(content)]


def test_two_tokens_of_one_id_are_not_claimed() -> None:
    vocabulary = {letter: byte for byte, letter in LETTER.items()}
    for shared, is_claimed in ((256, False), (257, True)):
        vocabulary |= {"ab": 256, "cd": shared}
        made = Tokenizer(BPE(vocab=vocabulary, merges=[("a", "b"), ("c", "d")]))
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        assert (byte_level_bpe(made) is not None) is is_claimed


@pytest.mark.slow
def test_characters_are_found_by_their_first_byte() -> None:
    first = {byte: set[str]() for byte in range(256)}
    for each in EVERYTHING:
        first[each.encode()[0]].add(each)
    for byte, characters in first.items():
        if characters:
            least, most = characters_with(byte)
            assert (
                (least, most) == ("\ud000", "\udfff") if byte == 0xED else (min(characters), max(characters))
            )


def test_a_byte_without_a_token_makes_characters_unknown() -> None:
    made = backend([("a", "b")])
    vocabulary = made.get_vocab()
    for byte, unknown in ((0x06, (("\x06", "\x06"),)), (0xF1, (("\U00040000", "\U0007ffff"),)), (0xFF, ())):
        lacking = {piece: number for piece, number in vocabulary.items() if piece != LETTER[byte]}
        made.model = BPE(vocab=lacking, merges=[("a", "b")])
        bpe = byte_level_bpe(made)
        assert bpe
        assert bpe.left_out == (*unknown, (SEPARATOR, SEPARATOR))
    made.model = BPE(
        vocab={each: n for each, n in vocabulary.items() if each != LETTER[0x80]}, merges=[("a", "b")]
    )
    assert byte_level_bpe(made) is None
