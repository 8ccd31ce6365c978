"""Log-probabilities of generated tokens, in the shapes of chat and of completions."""

from pathlib import Path

import msgspec

from hiscore.tokenization.file import read_backend
from hiscore.tokenization.token_bytes import TokenBytes
from hiscore_client import Chunk

# JSON has no minus infinity; as vLLM writes it.
LEAST = -9999.0


class Alternative(msgspec.Struct):
    """A token that could have been."""

    token: str
    logprob: float
    bytes: list[int]


class TokenLogprob(msgspec.Struct):
    """A token that was generated."""

    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[Alternative]


class ChatLogprobs(msgspec.Struct):
    """The log-probabilities of a chat's answer, or of a part of it."""

    content: list[TokenLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct):
    """The log-probabilities of a completion, or of a part of it."""

    tokens: list[str]
    token_logprobs: list[float]
    top_logprobs: list[dict[str, float]]
    text_offset: list[int]


class LogprobsReader:
    """Reads log-probabilities off the chunks of `decode`; the checkpoint's tokenizer names the tokens."""

    def __init__(self, checkpoint: Path) -> None:
        self._bytes = TokenBytes(read_backend(checkpoint))

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

    def of_text(self, chunk: Chunk, offset: int) -> TextLogprobs:
        """Read a chunk's log-probabilities; `offset` counts the characters of the text before it."""
        read = self.of_chat(chunk).content
        offsets = []
        for each in read:
            offsets.append(offset)
            offset += len(each.token)
        return TextLogprobs(
            [each.token for each in read],
            [each.logprob for each in read],
            [_by_text(each) for each in read],
            offsets,
        )

    def _named(self, token: int, logprob: float) -> tuple[str, float, list[int]]:
        content = self._bytes(token)
        return content.decode(errors="replace"), max(logprob, LEAST), list(content)


def _by_text(generated: TokenLogprob) -> dict[str, float]:
    """A token and its alternatives; of several with the same text, such as parts of characters, the likeliest."""
    named = {generated.token: generated.logprob}
    for each in generated.top_logprobs:
        named.setdefault(each.token, each.logprob)
    return named


def _pairs(ids: list[int], values: list[float]) -> list[tuple[int, float]]:
    return list(zip(ids, values, strict=True))
