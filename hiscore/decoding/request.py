"""What a call of ``decode`` must satisfy before it may wait for its turn: a prompt, in ids or in text."""

from dataclasses import dataclass

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.sampling_params import DecodeOptions
from hiscore.errors import RequestError
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import check_ids
from hiscore.tokenization.panics import Panic
from hiscore.tokenization.tokenizer import TextTokenizer


@dataclass(frozen=True)
class PromptReader:
    """Turns prompts into checked token ids. tokenizer: None where the checkpoint has none, then ids alone."""

    facts: CheckpointFacts
    tokenizer: TextTokenizer | None
    max_text_bytes: int

    def read(self, input_ids: Int32 | None, text: str | None, options: DecodeOptions) -> Int32:
        """The prompt as int32 [n], a copy; text is encoded as a checkpoint's tokenizer would, never truncated.

        input_ids: int32 [n], or None if it was not sent; text: valid Unicode, or None.

        Raises:
            RequestError: both inputs or neither, no token, ids out of the vocabulary, text or stop strings without
                a tokenizer, or a text beyond the limit. Whether the length fits is the engine's to say.
        """
        if (input_ids is None) == (text is None):
            found = "neither was sent" if text is None else "both were sent"
            raise RequestError(f"exactly one of 'input_ids' and 'text_input' is needed: {found}")
        if options.stop and self.tokenizer is None:
            raise RequestError("parameter 'stop' needs text: this checkpoint has no tokenizer")
        return self._ids(input_ids) if text is None else self._encode(text)

    def _ids(self, input_ids: Int32 | None) -> Int32:
        assert input_ids is not None
        if not len(input_ids):
            raise RequestError("'input_ids' is empty: at least one token is needed")
        check_ids("input_ids", input_ids, self.facts.vocab_size)
        return input_ids.copy()

    def _encode(self, text: str) -> Int32:
        if self.tokenizer is None:
            raise RequestError(
                "'text_input' needs a tokenizer, which this checkpoint has not: send 'input_ids'"
            )
        size = len(text.encode())
        if size > self.max_text_bytes:
            raise RequestError(f"'text_input' holds {size} bytes: at most {self.max_text_bytes} in one call")
        try:
            (ids,), _ = self.tokenizer.encode([text], [])
        except Panic:
            raise RequestError("the tokenizer cannot encode 'text_input'") from None
        prompt = np.array([*self.tokenizer.prefix, *ids, *self.tokenizer.suffix], np.int32)
        if not len(prompt):
            raise RequestError("'text_input' is empty: at least one token is needed")
        # A tokenizer may know more tokens than the checkpoint has embeddings.
        check_ids("text_input", prompt, self.facts.vocab_size)
        return prompt
