"""A token's bytes are those that decoding makes text of."""

import pytest
from tokenizers import Tokenizer

from hiscore.checkpoint import resolve
from hiscore.tokenization.token_bytes import TokenBytes, byte_letters
from tests.support import tiny_tokenizers as tiny

TEXTS = ["Is it a fruit?", "naïve 苹果 👩‍👩‍👧", "\n\t  x", "a < b <|im_end|>"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("kind", ["default", *tiny.WITH_SAFE_SPLITS, "metaspace"])
def test_together_they_are_the_text(kind: str, text: str) -> None:
    if kind == "default":
        backend = Tokenizer.from_file(str(resolve(progress=False) / "tokenizer.json"))
    else:
        backend = {**tiny.WITH_SAFE_SPLITS, "metaspace": tiny.metaspace}[kind]()
    ids = backend.encode(text, add_special_tokens=False).ids
    if 0 in ids and backend.id_to_token(0) == "<unk>":
        pytest.skip("this vocabulary lacks a part of the text")
    joined = b"".join(map(TokenBytes(backend), ids)).decode()
    normalized = backend.normalizer.normalize_str(text) if backend.normalizer else text
    # Some tokenizers put a space before a text.
    assert joined.lstrip(" ") in (normalized.replace("▁", " ").lstrip(" "), text.lstrip(" "))


def test_an_id_without_a_token_has_none() -> None:
    assert TokenBytes(tiny.train(tiny.smollm2()))(10**6) == b""


def test_every_byte_has_a_letter_of_its_own() -> None:
    letters = byte_letters()
    assert sorted(letters.values()) == list(range(256))
    assert (letters["A"], letters["Ġ"], letters["Ċ"]) == (65, 32, 10)
