"""Reads a request into a validated call: a prompt in ids or in text, its parameters, its deadlines.

Encoding a large text takes seconds, and compiling a grammar may take some, so a separate thread does that.
"""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import Full, Queue
from typing import Any

import numpy as np

from hiscore.arrays import Int32
from hiscore.decoding.requests.grammar import GrammarCompiler, GrammarMatcher
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall
from hiscore.errors import Code, RequestError, to_request_error
from hiscore.models.support import CheckpointFacts
from hiscore.parameters import check_ids
from hiscore.tokenization.panics import Panic
from hiscore.tokenization.tokenizer import TextTokenizer

# A core encodes about a megabyte per second: smaller texts delay other requests only briefly.
LARGE_CHARACTERS = 2**16
MAX_LARGE = 16


@dataclass(frozen=True)
class DecodeRequest:
    """A request as it was sent: int32 ids or valid Unicode, valid parameters, and the times of a `DecodeCall`."""

    input_ids: Int32 | None
    text: str | None
    params: SamplingParams
    deadline: float
    start_by: float
    arrived: float = field(default_factory=time.monotonic)


@dataclass(frozen=True)
class PromptReader:
    """Turns prompts, text of at most `max_text_bytes` of UTF-8, into ids; without a tokenizer reads ids only."""

    facts: CheckpointFacts
    tokenizer: TextTokenizer | None
    max_text_bytes: int
    grammars: GrammarCompiler | None = None

    def read(self, input_ids: Int32 | None, text: str | None, params: SamplingParams) -> Int32:
        """Validate ids, int32 [n], or encode valid Unicode, never truncated; the engine checks the length.

        Raises:
            RequestError: Both inputs or neither, no token, ids out of the vocabulary, text or stop strings without
                a tokenizer, or too large a text.
        """
        if (input_ids is None) == (text is None):
            sent = "neither was sent" if text is None else "both were sent"
            raise RequestError(f"exactly one of 'input_ids' and 'text_input' is needed: {sent}")
        if params.stop and self.tokenizer is None:
            raise RequestError("parameter 'stop' needs text: this checkpoint has no tokenizer")
        biased = [token for token, _ in params.logit_bias]
        if biased:
            check_ids("logit_bias", np.array(biased, np.int32), self.facts.vocab_size)
        return self._check_ids(input_ids) if text is None else self._encode(text, params.add_special_tokens)

    def compile(self, params: SamplingParams) -> GrammarMatcher | None:
        """Compile the request's grammar, if any; raise RequestError if it or the tokenizer does not allow that."""
        if params.has_grammar and self.grammars is None:
            raise RequestError("a grammar needs text: this checkpoint has no tokenizer")
        return self.grammars.compile(params) if self.grammars else None

    def _check_ids(self, input_ids: Int32 | None) -> Int32:
        assert input_ids is not None
        if not len(input_ids):
            raise RequestError("'input_ids' is empty: at least one token is needed")
        check_ids("input_ids", input_ids, self.facts.vocab_size)
        return input_ids.copy()

    def _encode(self, text: str, special: bool) -> Int32:
        if self.tokenizer is None:
            raise RequestError(
                "'text_input' needs a tokenizer, which this checkpoint does not have: send 'input_ids'"
            )
        size = len(text.encode())
        if size > self.max_text_bytes:
            raise RequestError(f"'text_input' holds {size} bytes: at most {self.max_text_bytes} in one call")
        per_token = self.tokenizer.bytes_per_token
        if per_token is not None and size > (most := per_token * self.facts.context_length):
            raise RequestError(
                f"'text_input' holds {size} bytes: at most {most} can be {self.facts.context_length} tokens "
                "(MAX_CONTEXT)"
            )
        try:
            prompt = np.array(self.tokenizer.encode_whole(text, special), np.int32)
        except Panic:
            raise RequestError("the tokenizer cannot encode 'text_input'") from None
        if not len(prompt):
            raise RequestError("'text_input' is empty: at least one token is needed")
        # A tokenizer may know more tokens than the checkpoint has embeddings.
        check_ids("text_input", prompt, self.facts.vocab_size)
        return prompt


class RequestIntake:
    """Reads requests for `submit`, on its own thread if that takes long; `refuse` gets those that fail."""

    def __init__(
        self,
        prompts: PromptReader,
        submit: Callable[[DecodeCall, Any], None],
        refuse: Callable[[Any, RequestError], None],
    ) -> None:
        self._prompts, self._submit, self._refuse = prompts, submit, refuse
        self.num_refused = 0
        """Requests refused because too many large texts wait."""
        self._large: Queue[tuple[DecodeRequest, Any] | None] = Queue(MAX_LARGE)
        self._thread = threading.Thread(target=self._read_large, name="hiscore-intake", daemon=True)
        self._thread.start()

    def accept(self, request: DecodeRequest, reply_to: Any) -> None:
        """Read a request now, or queue it to be read; never block for long, and never raise."""
        is_large = request.text is not None and len(request.text) > LARGE_CHARACTERS
        if not (is_large or request.params.has_grammar):
            self._read(request, reply_to)
            return
        try:
            self._large.put_nowait((request, reply_to))
        except Full:
            self.num_refused += 1
            busy = f"{MAX_LARGE} grammars or texts of more than {LARGE_CHARACTERS} characters wait to be read"
            self._refuse(reply_to, RequestError(f"the server is full: {busy}", Code.UNAVAILABLE))

    def close(self) -> None:
        """Read what was accepted, then end the thread."""
        self._large.put(None)
        self._thread.join()

    def _read_large(self) -> None:
        while (entry := self._large.get()) is not None:
            self._read(*entry)

    def _read(self, request: DecodeRequest, reply_to: Any) -> None:
        try:
            prompt = self._prompts.read(request.input_ids, request.text, request.params)
            params, deadline, start_by = request.params, request.deadline, request.start_by
            grammar = self._prompts.compile(params)
            mask = grammar.mask() if grammar else None
            call = DecodeCall(prompt, params, deadline, start_by, request.arrived, grammar, mask)
            self._submit(call, reply_to)
        except Exception as error:
            self._refuse(reply_to, to_request_error(error))
