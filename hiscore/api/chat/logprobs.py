"""Log-probabilities of generated tokens, in the shapes of chat and of completions."""

import codecs
from collections.abc import Sequence
from pathlib import Path

import msgspec

from hiscore.tokenization.file import read_backend
from hiscore.tokenization.token_bytes import TokenBytes
from hiscore_client import Chunk

# JSON has no minus infinity; as vLLM writes it.
LEAST = -9999.0


class Alternative(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(Alternative):
    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextOffsets:
    """Counts the characters of a completion before each of its tokens, to a part of a character: before that.

    A `text` that is known tells of what the tokenizer has added to it: special tokens, and spaces before words.
    """

    def __init__(self, text: str = "") -> None:
        self._text = text
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._characters = self._sent = 0

    def of(self, tokens: Sequence[tuple[bytes, bool]], chunk: Chunk) -> list[int]:
        """Count up to each of a chunk's tokens, but not beyond the end of the text, which may be cut at a stop.

        Special tokens, which the flags name, have no text in a completion.
        """
        offsets = []
        for token, is_special in tokens:
            offsets.append(at := self._characters)
            if is_special and not self._text.startswith(token.decode(), at):
                continue
            word = token.decode(errors="ignore") if self._text else ""
            if (
                word[:1] == " "
                and not self._text.startswith(word, at)
                and self._text.startswith(word[1:], at)
            ):
                token = token[1:]
            self._characters += len(self._decoder.decode(token))
        self._sent += len(chunk.text)
        return [min(each, self._sent) for each in offsets] if chunk.finish_reason else offsets


class LogprobsReader:
    """Reads log-probabilities off the chunks of `decode`; the checkpoint's tokenizer names the tokens."""

    def __init__(self, checkpoint: Path) -> None:
        tokenizer = read_backend(checkpoint)
        self._bytes = TokenBytes(tokenizer)
        self._special = {
            number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special
        }

    def of_chat(self, chunk: Chunk) -> ChatLogprobs:
        """Read a chunk's log-probabilities, without the token that ended it, which has no text."""
        tops = chunk.top_token_ids or [[]] * len(chunk.logprobs)
        values = chunk.top_logprobs or [[]] * len(chunk.logprobs)
        read = [
            TokenLogprob(*self._named(token, logprob), [Alternative(*self._named(*each)) for each in top])
            for token, logprob, top in zip(
                chunk.token_ids, chunk.logprobs, map(_pairs, tops, values), strict=True
            )
        ]
        by_token = chunk.finish_reason == "stop" and not chunk.matched_stop
        return ChatLogprobs(read[:-1] if by_token else read)

    def of_text(self, chunk: Chunk, offsets: TextOffsets) -> TextLogprobs:
        """Read a chunk's log-probabilities; `offsets` has read the chunks before it."""
        read = self.of_chat(chunk).content
        written = [
            (bytes(each.bytes), token in self._special)
            for token, each in zip(chunk.token_ids, read, strict=False)
        ]
        return TextLogprobs(
            [_text(each) for each in read],
            [each.logprob for each in read],
            [_by_text(each) for each in read],
            offsets.of(written, chunk),
        )

    def text_of(self, token: int) -> str:
        """Return a token's text, with U+FFFD for parts of characters."""
        return self._bytes(token).decode(errors="replace")

    def _named(self, token: int, logprob: float) -> tuple[str, float, list[int]]:
        content = self._bytes(token)
        return content.decode(errors="replace"), max(logprob, LEAST), list(content)


def _by_text(generated: TokenLogprob) -> dict[str, float]:
    """A token and its alternatives; of several with the same text the likeliest."""
    named = {_text(generated): generated.logprob}
    for each in generated.top_logprobs:
        named.setdefault(_text(each), each.logprob)
    return named


def _text(token: Alternative) -> str:
    """Return a token's text or, as OpenAI writes parts of characters, its bytes."""
    content = bytes(token.bytes)
    return token.token if content == token.token.encode() else f"bytes:{str(content)[2:-1]}"


def _pairs(ids: list[int], values: list[float]) -> list[tuple[int, float]]:
    return list(zip(ids, values, strict=True))
