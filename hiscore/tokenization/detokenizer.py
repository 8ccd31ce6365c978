"""Text of a stream of tokens, piece by piece: together the pieces are the text of all its tokens at once.

A tokenizer's decoder looks at more than one token: the first loses a space, the bytes of a character may come in
several. So a piece is what decoding a window of the newest tokens gives beyond what was sent of it. What later
tokens could still change is not sent: the sign for broken bytes at the end, which may be half a character, and
with byte fallback a run of byte tokens, which decodes to signs for broken bytes as a whole if any part is broken.
"""

from tokenizers import Tokenizer

from hiscore.tokenization.panics import panics_raised

BROKEN = "\ufffd"
# Tokens that a window may grow to, and that are left of it then: at most 3 bytes wait for the rest of their
# character, at least one in a token.
WINDOW, KEPT = 8, 3


class TextDecoder:
    """What is known of a fast tokenizer's decoding; makes a `TextStream` for each stream."""

    def __init__(self, backend: Tokenizer) -> None:
        self.backend = backend
        self.special = {
            token.content for token in backend.get_added_tokens_decoder().values() if token.special
        }
        names = [backend.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
        # Some vocabularies have these names, and a decoder that takes them for words.
        self.byte_ids = {byte for byte in names if byte is not None and "<0x" not in self.text([byte])}

    def stream(self) -> "TextStream":
        """For a new stream of tokens."""
        return TextStream(self)

    def skips(self, token: int) -> bool:
        """Whether a token has no text: a special one, or an id without a token (logits may be padded)."""
        content = self.backend.id_to_token(token)
        return not content or content in self.special

    def text(self, tokens: list[int]) -> str:
        """The text of tokens, as a checkpoint's tokenizer decodes them without special tokens."""
        with panics_raised():
            return str(self.backend.decode(tokens, skip_special_tokens=True))


class TextStream:
    """The text of one stream, without special tokens."""

    def __init__(self, decoder: TextDecoder) -> None:
        self._decoder = decoder
        self._window: list[int] = []
        self._sent = 0  # characters of the window's text

    def push(self, token: int) -> str:
        """The text that one more token settles: whole characters, often none.

        Raises:
            OverflowError: a negative id.
        """
        if self._decoder.skips(token):
            return ""
        self._window.append(token)
        if token in self._decoder.byte_ids:
            return ""
        text = self._decoder.text(self._window)
        settled = len(text) - text.endswith(BROKEN)
        piece = text[self._sent : settled]
        self._sent = settled
        if len(self._window) > WINDOW:
            del self._window[:-KEPT]
            self._sent = len(self._decoder.text(self._window)) - (len(text) - settled)
        return piece

    def flush(self) -> str:
        """What is left when the stream ends; half a character becomes U+FFFD."""
        text = self._decoder.text(self._window)[self._sent :]
        self._window, self._sent = [], 0
        return text
