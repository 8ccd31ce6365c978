from pathlib import Path

import pytest
from tokenizers import Tokenizer

from hiscore.api.chat.logprobs import LogprobsReader
from hiscore.tokenization.token_bytes import TokenBytes
from hiscore_client import Chunk


@pytest.fixture
def parts(checkpoint: Path) -> list[int]:
    """Tokens that are parts of characters, so that all have the same text."""
    tokenizer = Tokenizer.from_file(str(checkpoint / "tokenizer.json"))
    contents = TokenBytes(tokenizer)
    ids = range(tokenizer.get_vocab_size())
    return [token for token in ids if contents(token).decode(errors="replace") == "\N{REPLACEMENT CHARACTER}"]


def test_the_token_itself_is_among_its_alternatives(checkpoint: Path) -> None:
    reader = LogprobsReader(checkpoint)
    chunk = Chunk("ab", [65, 66], "length", [-3.0, -0.5], [[67], [66]], [[-0.25], [-0.5]])
    chat, text = reader.of_chat(chunk).content, reader.of_text(chunk, 0)
    # Chat has a list of alternatives beside the token, completions all of them under their texts.
    (other,) = chat[0].top_logprobs
    assert text.top_logprobs == [{chat[0].token: -3.0, other.token: -0.25}, {chat[1].token: -0.5}]
    alone = reader.of_text(Chunk("a", [65], "length", [-3.0]), 0)
    assert alone.top_logprobs == [{chat[0].token: -3.0}]


def test_of_alternatives_with_the_same_text_the_likeliest_counts(checkpoint: Path, parts: list[int]) -> None:
    first, second, third = parts[:3]
    reader = LogprobsReader(checkpoint)
    chunk = Chunk("", [65], "length", [-3.0], [[first, second, third]], [[-0.5, -1.0, -2.0]])
    assert list(reader.of_text(chunk, 0).top_logprobs[0].values()) == [-3.0, -0.5]
    # The token's own stays what token_logprobs says.
    chunk = Chunk("", [third], "length", [-2.0], [[first, second]], [[-0.5, -1.0]])
    (found,) = reader.of_text(chunk, 0).top_logprobs
    assert found == {"\N{REPLACEMENT CHARACTER}": -2.0}
