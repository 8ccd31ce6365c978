from pathlib import Path

import pytest

from hiscore.api.chat.logprobs import LogprobsReader, TextOffsets
from hiscore.tokenization.file import read_backend
from hiscore.tokenization.token_bytes import TokenBytes
from hiscore_client import Chunk


@pytest.fixture
def parts(checkpoint: Path) -> list[int]:
    """Tokens that are parts of characters, so that all have the same text."""
    tokenizer = read_backend(checkpoint)
    contents = TokenBytes(tokenizer)
    ids = range(tokenizer.get_vocab_size())
    return [token for token in ids if contents(token).decode(errors="replace") == "\N{REPLACEMENT CHARACTER}"]


def test_the_token_itself_is_among_its_alternatives(checkpoint: Path) -> None:
    reader = LogprobsReader(checkpoint)
    chunk = Chunk("ab", [65, 66], "length", [-3.0, -0.5], [[67], [66]], [[-0.25], [-0.5]])
    chat, text = reader.of_chat(chunk).content, reader.of_text(chunk, TextOffsets())
    # Chat has a list of alternatives beside the token, completions all of them under their texts.
    (other,) = chat[0].top_logprobs
    assert text.top_logprobs == [{chat[0].token: -3.0, other.token: -0.25}, {chat[1].token: -0.5}]
    alone = reader.of_text(Chunk("a", [65], "length", [-3.0]), TextOffsets())
    assert alone.top_logprobs == [{chat[0].token: -3.0}]


def test_parts_of_characters_are_told_apart_by_their_bytes(checkpoint: Path, parts: list[int]) -> None:
    first, second, third = parts[:3]
    reader = LogprobsReader(checkpoint)
    chunk = Chunk("", [first], "length", [-3.0], [[second, third]], [[-0.5, -1.0]])
    (found,) = reader.of_text(chunk, TextOffsets()).top_logprobs
    names = [f"bytes:\\x{byte:02x}" for number in parts[:3] for byte in reader._bytes(number)]
    assert found == dict(zip(names, (-3.0, -0.5, -1.0), strict=True))
    assert reader.of_text(chunk, TextOffsets()).tokens == names[:1]
    # Chat has the bytes in a field of their own.
    assert reader.of_chat(chunk).content[0].token == "\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize("size", [1, 2, 100])
def test_offsets_are_within_the_text_and_at_the_character_of_each_token(checkpoint: Path, size: int) -> None:
    tokenizer = read_backend(checkpoint)
    text = "a 🦄🐙 b\N{ZERO WIDTH JOINER}ü 果"
    special = next(number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special)
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert len(ids) > len(text), "characters of several tokens"
    ids[3:3] = [special]
    reader, offsets, found = LogprobsReader(checkpoint), TextOffsets(), []
    for at in range(0, len(ids), size):
        chunk = Chunk("", ids[at : at + size], "", [-1.0] * len(ids[at : at + size]))
        found += reader.of_text(chunk, offsets).text_offset
    before = [b"".join(reader._bytes(each) for each in ids[:at] if each != special) for at in range(len(ids))]
    assert found == [len(each.decode(errors="ignore")) for each in before]
    # A stop string of which there is no text is at the end.
    ending = Chunk(text[:-1], ids[-1:], "stop", [-1.0], matched_stop="果")
    assert reader.of_text(ending, offsets).text_offset == [len(text) - 1]


def test_of_alternatives_with_the_same_text_the_likeliest_counts(checkpoint: Path) -> None:
    reader = LogprobsReader(checkpoint)
    chunk = Chunk("", [65], "length", [-3.0], [[66, 66]], [[-0.5, -1.0]])
    assert list(reader.of_text(chunk, TextOffsets()).top_logprobs[0].values()) == [-3.0, -0.5]
    # The token's own stays what token_logprobs says.
    chunk = Chunk("", [66], "length", [-2.0], [[66]], [[-0.5]])
    assert list(reader.of_text(chunk, TextOffsets()).top_logprobs[0].values()) == [-2.0]
