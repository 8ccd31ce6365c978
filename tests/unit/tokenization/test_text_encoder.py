"""Texts get the ids of the checkpoint's own tokenizer, whichever library gives them."""

import json
import re
from functools import cache
from pathlib import Path
from pydoc_data.topics import topics

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from hiscore.checkpoint import resolve
from hiscore.tokenization import text_encoder as module
from hiscore.tokenization.byte_level_bpe import SEPARATOR
from hiscore.tokenization.panics import Panic, panics_raised
from hiscore.tokenization.text_encoder import TextEncoder, any_of
from tests.support import tiny_tokenizers as tiny
from tests.support.client_environment import package_file
from tests.support.tiers import first_of
from tests.unit.tokenization.test_byte_level_bpe import backend as byte_level
from tests.unit.tokenization.test_safe_splits import TEXTS, ids

BUILT = {name: build() for name, build in (tiny.WITH_SAFE_SPLITS | tiny.WITHOUT_SAFE_SPLITS).items()}
encoder_of = cache(lambda name: TextEncoder(BUILT[name]))


class Counting(TextEncoder):
    left = 0

    def _by_backend(self, texts):
        self.left += len(texts)
        return super()._by_backend(texts)


@pytest.fixture(scope="module")
def smollm() -> Tokenizer:
    return Tokenizer.from_file(str(resolve() / "tokenizer.json"))


@pytest.mark.parametrize("name", first_of(*BUILT, others=pytest.mark.slow))
@settings(max_examples=200)
@given(st.lists(TEXTS, max_size=4))
def test_batches_get_the_ids_of_the_tokenizer(name: str, texts: list[str]) -> None:
    assert encoder_of(name).encode(texts) == [ids(BUILT[name], text) for text in texts]


@pytest.mark.parametrize("name", tiny.WITH_PATTERNS)
def test_only_texts_with_more_than_bpe_are_left(name: str) -> None:
    backend = tiny.WITH_PATTERNS[name]()
    encoder = Counting(backend)
    texts = ["a <|im_end|>", "Is this a fruit?", "e\u0301té 苹果 🍎", "<|im_start|>", "<b> html </b>", ""]
    texts.append("<|im_start|>user\nIs it?<|im_end|>\n<|im_start|><|im_start|>system\n苹")
    assert encoder.encode(texts) == [ids(backend, text) for text in texts]
    assert encoder.left == 0
    backend.add_tokens([AddedToken("fruit", normalized=True), AddedToken("<b>", lstrip=True)])
    encoder = Counting(backend)
    assert encoder.encode(texts) == [ids(backend, text) for text in texts]
    assert encoder.left == 2


@pytest.mark.parametrize("single", ["$A", "$A $A"])
def test_a_template_that_repeats_a_text_is_left(single: str) -> None:
    backend = tiny.qwen2()
    backend.post_processor = processors.TemplateProcessing(single, "$A $B", [])
    encoder = Counting(backend)
    assert encoder.encode(["Is it?"]) == [ids(backend, "Is it?")]
    assert encoder.left == (single != "$A")


def test_a_text_with_the_separator_of_texts_is_left() -> None:
    encoder = Counting(BUILT["qwen2"])
    texts = [*("word" for _ in range(40)), f"a{SEPARATOR}b", SEPARATOR, "<|im_end|>", "苹", "z"]
    assert encoder.encode(texts) == [ids(BUILT["qwen2"], text) for text in texts]
    assert encoder.left == 2


@pytest.mark.slow
def test_real_text_gets_the_ids_of_the_real_tokenizer(smollm: Tokenizer) -> None:
    """Its vocabulary lacks some bytes."""
    encoder = Counting(smollm)
    texts = [*topics.values(), *tiny.CORPUS]
    assert encoder.encode(texts) == [ids(smollm, text) for text in texts]
    assert encoder.left < len(texts) / 10  # such as name a special token
    odd = ["\x06", "a\x13b", "  \U00011de0", "  \U00016ff4", "\U00040000", "\U000fffff"]
    odd += ["x\U000f1234", "\x7f\x80"]
    assert encoder.encode(odd) == [ids(smollm, text) for text in odd]

    @settings(max_examples=500, deadline=None)
    @given(TEXTS | st.text(max_size=20))
    def check(text: str) -> None:
        assert encoder.encode([text]) == [ids(smollm, text)]

    check()


@pytest.mark.slow
@pytest.mark.exhaustive
def test_a_published_vocabulary_of_130_000_tokens(tmp_path: Path) -> None:
    """Mistral's, which lists every pair of tokens that forms one, as transformers converts it."""
    from transformers.convert_slow_tokenizer import TikTokenConverter

    source = json.loads(package_file("mistral_common/data/tekken_240911.json").read_text())
    file = tmp_path / "tekken.tiktoken"
    size = source["config"]["default_vocab_size"] - source["config"]["default_num_special_tokens"]
    file.write_text("".join(f"{each['token_bytes']} {each['rank']}\n" for each in source["vocab"][:size]))
    backend = TikTokenConverter(str(file), pattern=source["config"]["pattern"]).converted()
    encoder = Counting(backend)
    texts = [*topics.values(), *tiny.CORPUS]
    assert encoder.encode(texts) == [ids(backend, text) for text in texts]
    assert encoder.left == 0

    @settings(max_examples=500, deadline=None)
    @given(TEXTS | st.text(max_size=20) | st.text(" -=\n", max_size=60))
    def check(text: str) -> None:
        assume(SEPARATOR not in text)
        assert encoder.encode([text]) == [ids(backend, text)]

    check()
    assert encoder.left == 0


FLAGS = st.fixed_dictionaries(
    {flag: st.booleans() for flag in ("normalized", "lstrip", "rstrip", "single_word", "special")}
)


@pytest.mark.slow
@settings(max_examples=1_000, deadline=None)
@given(
    st.lists(st.tuples(st.text("ab <\u0301", min_size=1, max_size=3), FLAGS | st.just({})), max_size=5),
    st.lists(st.text("ab <\u0301\u00e1c", max_size=12), max_size=3),
    st.sampled_from([None, normalizers.NFC()]),
    st.booleans(),
)
@pytest.mark.exhaustive
def test_added_tokens_of_any_kind_are_found_as_the_library_finds_them(
    added: list[tuple[str, dict[str, bool]]],
    texts: list[str],
    normalizer: normalizers.Normalizer | None,
    skips_special: bool,
) -> None:
    backend = byte_level([("a", "b"), ("Ġ", "a"), ("b", "b"), ("Ġa", "b")])
    if normalizer:
        backend.normalizer = normalizer
    for content, flags in added:
        token = AddedToken(content, **{"normalized": False, **flags})
        (backend.add_special_tokens if token.special else backend.add_tokens)([token])
    backend.encode_special_tokens = skips_special
    try:
        with panics_raised():
            expected = [ids(backend, text) for text in texts]
    except Panic:  # the library's own fault where one that strips spaces stands beside another
        reject()
    assert TextEncoder(backend).encode(texts) == expected


def test_tokens_added_in_another_normal_form_are_found() -> None:
    backend = tiny.qwen2()
    backend.add_tokens([AddedToken("cafe\u0301", normalized=True), AddedToken("re\u0301", normalized=False)])
    # Of a letter with two marks there is a third form, in which only the first is part of it.
    backend.add_tokens([AddedToken("vi\u1ebft", normalized=True)])
    encoder = TextEncoder(backend)
    texts = ["un caf\u00e9 noir", "un cafe\u0301 noir", "r\u00e9sum\u00e9", "re\u0301sume\u0301"]
    texts += ["vi\u1ebft", "vi\u00ea\u0301t", "vie\u0302\u0301t"]
    assert encoder.encode(texts) == [ids(backend, text) for text in texts]


@pytest.mark.slow
def test_a_surrogate_is_refused_as_the_tokenizer_does(smollm: Tokenizer) -> None:
    with pytest.raises(TypeError):
        smollm.encode_batch_fast(["\ud800"])
    with pytest.raises(TypeError):
        TextEncoder(smollm).encode(["é\ud800"])


@pytest.mark.slow
def test_what_one_library_gives_up_on_the_other_may_stand() -> None:
    encoder = Counting(BUILT["qwen2"])
    text = " " * 10**6
    with pytest.raises(Panic):
        module.TextEncoder._encode_part(encoder, [text])
    assert encoder.encode(["a", text, "b"]) == [ids(BUILT["qwen2"], each) for each in ("a", text, "b")]
    assert encoder.left == 3


def test_what_both_give_up_on_is_a_panic() -> None:
    backend = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    # Its search doubles with each letter, until the library's own limit.
    backend.pre_tokenizer = pre_tokenizers.Split(Regex("(a+)+b"), "isolated")
    with pytest.raises(Panic):
        TextEncoder(backend).encode(["b", "a" * 40])


def test_many_characters_are_encoded_in_parts_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHARACTERS_PER_THREAD", 20)
    parts = []
    encode_part = TextEncoder._encode_part
    monkeypatch.setattr(
        TextEncoder, "_encode_part", lambda self, texts: parts.append(texts) or encode_part(self, texts)
    )
    texts = [f"item {number}" for number in range(50)]
    assert TextEncoder(BUILT["gpt2"]).encode(texts) == [ids(BUILT["gpt2"], text) for text in texts]
    assert len(parts) > 10
    assert sorted(text for part in parts for text in part) == sorted(texts)


WORDS = st.text("ab.|", min_size=1, max_size=4)


@given(st.lists(WORDS, max_size=8), st.text("ab.|", max_size=8))
def test_it_matches_the_longest_word_at_the_first_place(words: list[str], text: str) -> None:
    found = any_of(words).search(text)
    assert (found is not None) == any(word in text for word in words)
    if found:
        place = min(text.find(word) for word in words if word in text)
        assert found.start() == place
        assert found.group() == max((word for word in words if text.startswith(word, place)), key=len)


def test_words_that_begin_alike_share_a_beginning() -> None:
    """Else each is tried at every place: a long text of `<` would hold up everybody."""
    words = [f"<SPECIAL_{number}>" for number in range(1000)]
    control = "|".join(map(re.escape, words))
    assert control.count("SPECIAL") == 1000
    assert any_of([*words, "<s>", "[INST]"]).pattern.count("SPECIAL") == 1


@pytest.mark.slow
def test_words_may_share_any_number_of_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["a" * number + "b" for number in range(1000)]
    expression = any_of([*words, "a" * 200])
    assert expression.search("aac" * 9) is None
    for text in ("aab", "a" * 300 + "b", "a" * 200):
        assert expression.fullmatch(text)
    monkeypatch.setattr(module, "MOST_LEVELS", 10**4)
    with pytest.raises(RecursionError):
        any_of(words)
