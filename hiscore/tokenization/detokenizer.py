"""Incremental detokenization: the pieces together are the text of all tokens decoded at once.

A tokenizer's decoder looks at more than one token: the first loses a space, and the bytes of a character may be
spread over several. So a piece is what decoding a window of the newest tokens adds to what was sent of it. The
first window holds the end of the prompt, so that prompt and pieces together are one text.
Text that later tokens could still change is held back: a replacement character at the end, which may be half a
character, and with byte fallback the bytes of a character that is not complete. All at once, a run of byte tokens
decodes to replacement characters throughout if any part is invalid; here the characters before that part stand,
since they have been sent.
"""

from codecs import getincrementaldecoder
from collections.abc import Sequence
from itertools import dropwhile, islice

from tokenizers import Tokenizer

from hiscore.tokenization.panics import panics_raised
from hiscore.tokenization.token_bytes import TokenBytes

REPLACEMENT = "\ufffd"
# A window grows to MAX_WINDOW tokens and is then cut to KEPT: at most 3 bytes wait for the rest of their
# character, and each token has at least one.
MAX_WINDOW, KEPT = 8, 3


class DetokenizerFactory:
    """Makes detokenizers, and holds the facts about a fast tokenizer that all of them need."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend, self.bytes_of = backend, TokenBytes(backend)
        self.special = {
            token.content for token in backend.get_added_tokens_decoder().values() if token.special
        }
        names = [backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        # Some vocabularies have tokens of these names without byte fallback: they decode to the name itself.
        self.byte_ids = {
            token: byte
            for byte, token in enumerate(names)
            if token is not None and "<0x" not in self.decode([token])
        }

    def new(self, skip_special_tokens: bool = True, prompt: Sequence[int] = ()) -> "IncrementalDetokenizer":
        """A detokenizer for one sequence: what it gives continues the text of a prompt."""
        detokenizer = IncrementalDetokenizer(self, skip_special_tokens)
        with_text = (token for token in reversed(prompt) if not self.has_no_text(token, skip_special_tokens))
        end = list(islice(with_text, MAX_WINDOW))[::-1]
        detokenizer.follow(list(dropwhile(self.continues, end)))
        return detokenizer

    def continues(self, token: int) -> bool:
        """Check whether a token is a byte within a character."""
        return 0x80 <= self.byte_ids.get(token, 0) < 0xC0

    def has_no_text(self, token: int, skip_special_tokens: bool = True) -> bool:
        """Check whether a token is special, or an id without a token (logits may be padded)."""
        content = self.backend.id_to_token(token)
        return not content or (skip_special_tokens and content in self.special)

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens as the checkpoint's tokenizer decodes them."""
        with panics_raised():
            return str(self.backend.decode(tokens, skip_special_tokens=skip_special_tokens))


class IncrementalDetokenizer:
    """The text of one sequence; `skip_special_tokens` leaves special tokens out of it."""

    def __init__(self, factory: DetokenizerFactory, skip_special_tokens: bool = True) -> None:
        self._factory, self._skip = factory, skip_special_tokens
        self._window: list[int] = []
        self._sent = 0  # characters of the window's text
        self._bytes: list[int] = []  # tokens that may become a character, behind the window
        self._broken = False  # the run of byte tokens has an invalid part

    def follow(self, end: Sequence[int]) -> None:
        """Begin behind the last tokens of a prompt, whose text was sent."""
        for token in end:
            self.push(token)
        decoder = getincrementaldecoder("utf-8")("replace")
        decoder.decode(b"".join(map(self._factory.bytes_of, end)))
        # Held back like half a character, a replacement character may be one of the prompt's own.
        if not decoder.getstate()[0]:
            self._sent = len(self._factory.decode(self._window, self._skip))

    def push(self, token: int) -> str:
        """Return the text that one more token settles: whole characters, often none."""
        if self._factory.has_no_text(token, self._skip):
            return ""
        if token in self._factory.byte_ids:
            return self._push_byte(token)
        broken = self._give_up_bytes() if self._bytes else ""
        self._broken = False
        return broken + self._settle([token])

    def flush(self) -> str:
        """Return the text left at the end of the sequence; half a character becomes U+FFFD."""
        text = self._factory.decode(self._window, self._skip)[self._sent :] + REPLACEMENT * len(self._bytes)
        self._window, self._sent, self._bytes, self._broken = [], 0, [], False
        return text

    def _push_byte(self, token: int) -> str:
        if self._broken:
            return REPLACEMENT
        self._bytes.append(token)
        try:
            bytes(self._factory.byte_ids[each] for each in self._bytes).decode()
        except UnicodeDecodeError as error:
            self._broken = error.reason != "unexpected end of data"
            return self._give_up_bytes() if self._broken else ""
        tokens, self._bytes = self._bytes, []
        return self._settle(tokens)

    def _give_up_bytes(self) -> str:
        """Begin the window anew with bytes that are no character, after sending the text that it holds back."""
        held_back = self._factory.decode(self._window, self._skip)[self._sent :]
        self._window, self._bytes = self._bytes, []
        self._sent = len(self._factory.decode(self._window, self._skip))
        return held_back + REPLACEMENT * self._sent

    def _settle(self, tokens: list[int]) -> str:
        self._window += tokens
        text = self._factory.decode(self._window, self._skip)
        settled = len(text) - text.endswith(REPLACEMENT)
        piece = text[self._sent : settled]
        self._sent = settled
        if len(self._window) > MAX_WINDOW:
            first = len(self._window) - KEPT
            while first and self._factory.continues(self._window[first]):
                first -= 1
            del self._window[:first]
            self._sent = len(self._factory.decode(self._window, self._skip)) - (len(text) - settled)
        return piece
