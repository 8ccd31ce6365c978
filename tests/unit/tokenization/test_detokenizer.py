"""The pieces together are the text of all tokens, and no piece has half a character."""

import json
from collections.abc import Callable
from itertools import chain, groupby
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, decoders, models
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from hiscore.checkpoint import resolve
from hiscore.settings import DEFAULT_MODEL
from hiscore.tokenization import detokenizer
from hiscore.tokenization.detokenizer import REPLACEMENT, DetokenizerFactory
from hiscore.tokenization.panics import Panic
from tests.support import tiny_tokenizers as tiny
from tests.support.examples import has_example
from tests.support.tiers import first_of

BYTE_FALLBACK = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


def decoded_by(decoder: Any) -> Callable[[], Tokenizer]:
    """A tokenizer of sentencepiece's kind with another decoder."""

    def build() -> Tokenizer:
        parts = json.loads(tiny.metaspace().to_str())
        # Byte tokens that are decoded are not special.
        parts["added_tokens"] = [
            token for token in parts["added_tokens"] if not token["content"].startswith("<0x")
        ]
        tokenizer = Tokenizer.from_str(json.dumps(parts))
        tokenizer.decoder = decoder
        return tokenizer

    return build


BUILDERS = {
    **tiny.WITH_SAFE_SPLITS,
    **tiny.WITHOUT_SAFE_SPLITS,
    "gemma's decoder": decoded_by(decoders.Sequence(BYTE_FALLBACK)),
    "llama2's decoder": decoded_by(decoders.Sequence([*BYTE_FALLBACK, decoders.Strip(" ", 1, 0)])),
    "t5's decoder": decoded_by(decoders.Metaspace()),
    "bert's decoder": decoded_by(decoders.WordPiece()),
    "the first bpe's decoder": decoded_by(decoders.BPEDecoder()),
}
TOKENIZERS: dict[str, Any] = {
    name: PreTrainedTokenizerFast(tokenizer_object=build()) for name, build in BUILDERS.items()
}
DEFAULT = "the default model"
TOKENIZERS[DEFAULT] = AutoTokenizer.from_pretrained(resolve(DEFAULT_MODEL))
DECODERS = {name: DetokenizerFactory(tokenizer.backend_tokenizer) for name, tokenizer in TOKENIZERS.items()}

WORDS = (
    "the item don't . é e\u0301 苹果是 これは Привет مرحبا नमस्ते བཀྲ་ཤིས 한국어"
    " 👩\u200d👧 🍎🍏 👍🏽 🇩🇪 𝔘𝔫𝔦 \ufffd ▁ <|im_end|> <0xE4>"
)
TEXTS = st.lists(
    st.sampled_from([*WORDS.split(), " is", "  ", "\n"]) | st.characters(exclude_categories=["Cs"]),
    max_size=12,
).map("".join)


def pieces(decoder: DetokenizerFactory, ids: list[int]) -> list[str]:
    incremental = decoder.new()
    return [*(incremental.push(token) for token in ids), incremental.flush()]


def truth(name: str, ids: list[int]) -> str:
    return TOKENIZERS[name].decode(ids, skip_special_tokens=True)


def flowing(name: str, ids: list[int]) -> str:
    """As `truth`, but in a run of byte tokens the characters before an invalid part stand."""
    factory = DECODERS[name]
    visible = [token for token in ids if not factory.has_no_text(token)]
    parts: list[list[int]] = [[]]
    for is_byte, run in groupby(visible, key=lambda token: token in factory.byte_ids):
        tokens = list(run)
        if is_byte and (valid := valid_length(bytes(factory.byte_ids[token] for token in tokens))) < len(
            tokens
        ):
            parts[-1] += tokens[:valid]
            parts.append(tokens[valid:])
        else:
            parts[-1] += tokens
    # A token between two parts keeps them apart; its own text is left out.
    (mark,) = TOKENIZERS[name].convert_tokens_to_ids(["a"]) if len(parts) > 1 else (0,)
    text, before = "", list[int]()
    for part in parts:
        text += truth(name, before + part).removeprefix(truth(name, before))
        before = [*before, *part, mark]
    return text


def valid_length(text: bytes) -> int:
    try:
        text.decode()
    except UnicodeDecodeError as error:
        return error.start
    return len(text)


def ids_of(name: str) -> st.SearchStrategy[list[int]]:
    """Texts, cut anywhere and mixed with ids at random: special ones, lone bytes, and beyond the vocabulary."""
    tokenizer = TOKENIZERS[name]
    ends = sorted({*range(24), *range(240, 300), *tokenizer.all_special_ids, *DECODERS[name].byte_ids})
    of_text = st.builds(
        lambda text, start, end: tokenizer.encode(text, add_special_tokens=False)[start : end or None],
        TEXTS,
        st.integers(0, 3),
        st.integers(-3, 0),
    )
    random = st.lists(st.sampled_from(ends) | st.integers(0, len(tokenizer) + 40), max_size=40)
    return st.lists(of_text | random, max_size=4).map(lambda parts: [*chain(*parts)])


@pytest.mark.parametrize("name", first_of(*TOKENIZERS, others=pytest.mark.slow))
def test_the_pieces_are_the_text_of_all_tokens(name: str) -> None:
    @settings(max_examples=100, deadline=None)
    @given(ids_of(name))
    def check(ids: list[int]) -> None:
        assert "".join(pieces(DECODERS[name], ids)) == flowing(name, ids)

    check()


@pytest.mark.parametrize("name", first_of(*TOKENIZERS, others=pytest.mark.slow))
@settings(max_examples=50)
@given(TEXTS)
def test_a_text_comes_in_whole_characters(name: str, text: str) -> None:
    ids = TOKENIZERS[name].encode(text, add_special_tokens=False)
    assume(REPLACEMENT not in truth(name, ids))
    assert all(REPLACEMENT not in piece for piece in pieces(DECODERS[name], ids))


@pytest.mark.parametrize("name", [DEFAULT, "gemma's decoder"])
def test_control_tokens_decoded_alone_are_wrong(name: str) -> None:
    """The tests above would fail if every token were decoded by itself."""

    def differs(ids: list[int]) -> bool:
        return "".join(truth(name, [token]) for token in ids) != truth(name, ids)

    assert has_example(ids_of(name), differs)


@pytest.mark.parametrize(("constant", "value"), [("REPLACEMENT", "nothing ends so"), ("KEPT", 2)])
@pytest.mark.exhaustive
def test_control_each_rule_is_needed(constant: str, value: object, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending half a character and keeping too small a window are noticed."""
    monkeypatch.setattr(detokenizer, constant, value)
    assert has_example(
        ids_of(DEFAULT), lambda ids: "".join(pieces(DECODERS[DEFAULT], ids)) != truth(DEFAULT, ids)
    )


def test_characters_before_an_invalid_byte_stand() -> None:
    """All at once, one invalid byte makes a whole run of bytes invalid; but these have been sent."""
    name = "gemma's decoder"
    ids = TOKENIZERS[name].convert_tokens_to_ids(["<0xE4>", "<0xBD>", "<0xA0>", "<0xFF>", "<0x41>", "a"])
    assert truth(name, ids) == REPLACEMENT * 5 + "a"
    assert pieces(DECODERS[name], ids) == ["", "", "你", REPLACEMENT, REPLACEMENT, "a", ""]
    # Invalid from its start on, it is as all at once.
    assert "".join(pieces(DECODERS[name], ids[1:])) == truth(name, ids[1:]) == REPLACEMENT * 4 + "a"


def test_what_follows_an_invalid_run_is_valid_again() -> None:
    name = "gemma's decoder"
    ids = TOKENIZERS[name].convert_tokens_to_ids(["<0xFF>", "a", "<0xE4>", "<0xBD>", "<0xA0>"])
    assert pieces(DECODERS[name], ids) == [REPLACEMENT, "a", "", "", "你", ""]


def test_a_replacement_character_before_an_invalid_byte_stands() -> None:
    """It is a character like any other: only what is behind it is invalid."""
    name = "gemma's decoder"
    ids = TOKENIZERS[name].convert_tokens_to_ids(["a", "<0xEF>", "<0xBF>", "<0xBD>", "<0x80>", "a"])
    assert pieces(DECODERS[name], ids) == ["a", "", "", "", 2 * REPLACEMENT, "a", ""]
    # Also where the text goes on within a character.
    assert pieces(DECODERS[name], [*ids[:4], ids[1], ids[0]])[3:] == ["", "", 2 * REPLACEMENT + "a", ""]


EMOJI = [f"<0x{byte:02X}>" for byte in ("👩" * 10).encode()]


@pytest.mark.parametrize(
    ("name", "tokens", "expected"),
    [
        # Ten emoji of byte tokens came all at the end.
        ("gemma's decoder", EMOJI, ["", "", "", "👩"] * 10),
        ("llama2's decoder", EMOJI, ["", "", "", "👩"] * 10),
        # A token with a byte's name is text where bytes are not decoded.
        ("t5's decoder", ["<0xE4>"], ["<0xE4>"]),
        # The first space alone is lost.
        ("llama2's decoder", ["▁", "▁", "i", "▁", "i"], ["", " ", "i", " ", "i"]),
    ],
)
def test_each_token_gives_its_text_at_once(name: str, tokens: list[str], expected: list[str]) -> None:
    ids = TOKENIZERS[name].convert_tokens_to_ids(tokens)
    assert pieces(DECODERS[name], ids) == [*expected, ""]


def test_control_bytes_are_told_from_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "gemma's decoder"
    ids = TOKENIZERS[name].convert_tokens_to_ids(["<0xE4>", "<0xBD>", "<0xA0>"])
    monkeypatch.setattr(DECODERS[name], "byte_ids", {})
    assert "".join(pieces(DECODERS[name], ids)) != "你"


def test_text_comes_at_once() -> None:
    """Holding everything back to the end would satisfy the other tests."""
    ids = TOKENIZERS[DEFAULT].encode("The capital of France is Paris.", add_special_tokens=False)
    assert pieces(DECODERS[DEFAULT], ids) == ["The", " capital", " of", " France", " is", " Paris", ".", ""]


@pytest.mark.parametrize("name", first_of(*TOKENIZERS, others=pytest.mark.slow))
@settings(max_examples=50, deadline=None)
@given(TEXTS, TEXTS)
def test_a_text_continues_its_prompt(name: str, prompt: str, text: str) -> None:
    tokenizer, factory = TOKENIZERS[name], DECODERS[name]
    before = [*tokenizer.encode(prompt), *tokenizer.all_special_ids[:1]]
    after = tokenizer.encode(text, add_special_tokens=False)
    head, whole = truth(name, before), truth(name, [*before, *after])
    assume(REPLACEMENT not in whole)
    made = factory.new(prompt=before)
    assert head + "".join([*map(made.push, after), made.flush()]) == whole


@pytest.mark.parametrize("name", ["llama2's decoder", "t5's decoder", "bert's decoder"])
def test_control_a_text_that_begins_anew_has_lost_a_space(name: str) -> None:
    ids = [TOKENIZERS[name].encode(text, add_special_tokens=False) for text in ("the item is", " is")]
    alone, behind = DECODERS[name].new(), DECODERS[name].new(prompt=ids[0])
    first, second = ("".join([*map(made.push, ids[1]), made.flush()]) for made in (alone, behind))
    assert second.lstrip() == first.lstrip()
    assert len(second) == len(first) + 1


@pytest.mark.parametrize("name", [DEFAULT, "gemma's decoder"])
def test_a_replacement_character_of_the_prompt_is_not_sent_again(name: str) -> None:
    ids = [TOKENIZERS[name].encode(text, add_special_tokens=False) for text in ("a\ufffd", "b")]
    made = DECODERS[name].new(prompt=ids[0])
    assert "".join([*map(made.push, ids[1]), made.flush()]) == "b"


def test_a_prompt_may_end_within_a_character() -> None:
    name = "gemma's decoder"
    ids = TOKENIZERS[name].convert_tokens_to_ids([f"<0x{byte:02X}>" for byte in "👩你".encode()])
    for cut in range(len(ids) + 1):
        made = DECODERS[name].new(prompt=ids[:cut])
        assert "".join([*map(made.push, ids[cut:]), made.flush()]) == (
            "👩你" if cut < 4 else "你"[cut // 7 :]
        )


def test_half_a_character_at_the_end_is_flushed() -> None:
    ids = TOKENIZERS[DEFAULT].encode("a👩", add_special_tokens=False)
    assert len(ids) > 2
    assert pieces(DECODERS[DEFAULT], ids[:-1]) == ["a", *[""] * (len(ids) - 2), REPLACEMENT]
    incremental = DECODERS[DEFAULT].new()
    for token in ids[:-1]:
        incremental.push(token)
    assert [incremental.flush(), incremental.flush()] == [REPLACEMENT, ""]


@pytest.mark.parametrize("name", [DEFAULT, "gemma's decoder"])
def test_what_has_no_text_does_not_part_a_character(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode("𝔘", add_special_tokens=False)
    assert len(ids) > 1
    for without_text in ([len(tokenizer) + 7] * 20, tokenizer.convert_tokens_to_ids(tiny.SPECIAL) * 20):
        parted = [*ids[:-1], *without_text, ids[-1]]
        assert "".join(pieces(DECODERS[name], parted)) == truth(name, parted) == "𝔘"


@pytest.mark.parametrize("name", [DEFAULT, "gemma's decoder"])
@pytest.mark.parametrize("kind", ["words", "broken bytes", "skipped"])
def test_a_token_of_a_long_one_costs_no_more(name: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each new token decodes a bounded number: the cost must not grow with the square of the length."""
    tokenizer, factory = TOKENIZERS[name], DECODERS[name]
    lone = tokenizer.convert_tokens_to_ids("<0xFF>") if factory.byte_ids else _lone_byte(tokenizer)
    token = {
        "words": tokenizer.encode("item", add_special_tokens=False)[0],
        "broken bytes": lone,
        "skipped": tokenizer.all_special_ids[0] if tokenizer.all_special_ids else len(tokenizer) + 7,
    }[kind]
    decoded: list[int] = []
    decode = factory.decode
    monkeypatch.setattr(
        factory, "decode", lambda tokens, *skip: decoded.append(len(tokens)) or decode(tokens, *skip)
    )
    length = 500
    assert "".join(pieces(factory, [token] * length)) == truth(name, [token] * length)
    # For each token the window and what is kept of it; in the end the rest.
    assert sum(decoded) <= length * (detokenizer.MAX_WINDOW + 1 + detokenizer.KEPT) + length


def _lone_byte(tokenizer: Any) -> int:
    return next(token for token in range(len(tokenizer)) if tokenizer.decode([token]) == REPLACEMENT)


def test_a_panic_of_the_library_is_an_exception_of_one_sequence() -> None:
    backend = Tokenizer(models.WordLevel({"a" * 40: 0}, unk_token="?"))
    backend.decoder = decoders.Replace(Regex("(a+)+b"), "")
    with pytest.raises(BaseException, match="retry-limit") as raised:
        backend.decode([0])
    assert not isinstance(raised.value, Exception), "this library does not panic any more: use another text"
    with pytest.raises(Panic):
        DetokenizerFactory(backend).new().push(0)


def test_special_tokens_have_text_on_request() -> None:
    backend = tiny.train(tiny.smollm2())
    token = backend.token_to_id("<|im_start|>")
    ids = [*backend.encode("a b").ids, token, *backend.encode("é").ids]
    for skip, expected in ((True, "a bé"), (False, "a b<|im_start|>é")):
        made = DetokenizerFactory(backend).new(skip)
        assert "".join([*map(made.push, ids), made.flush()]) == expected
