"""Structured output: grammars of requests, and which tokens they allow next.

llguidance computes the masks. It parses as the text grows, so nothing is prepared for a whole vocabulary, and its
limits bound what a request can cost, which matters where anyone may send a grammar.
"""

import json
import logging
import re
import secrets
import threading
from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

import numpy as np
from tokenizers import Tokenizer

from hiscore.arrays import Int32
from hiscore.decoding.requests.sampling_params import GRAMMARS, SamplingParams
from hiscore.errors import RequestError
from hiscore.tokenization.panics import panics_raised
from hiscore.tokenization.token_bytes import BYTE_TOKEN

if TYPE_CHECKING:  # imported with the first grammar: most servers never see one
    from llguidance import LLMatcher, LLTokenizer

log = logging.getLogger(__name__)

# The library's own limits on items, states and sizes. Fuel is counted work, so that every machine refuses the same
# input: about 20 ms to build a lexer, and 15 ms for a mask.
LIMITS = {"initial_lexer_fuel": 1_000_000, "step_lexer_fuel": 200_000, "verbose_errors": False}
# Where llguidance says what is wrong with a regular expression, some lines after that something is.
REASON = "error: "
MAX_MESSAGE = 200
# A token by its name in a Lark grammar; what else may hold such a name comes first, to the end if it is not
# closed: else each quote in it would be tried as another beginning.
TOKEN_NAME = re.compile(r'"(?:[^"\\]|\\.)*"?|/(?:[^/\\]|\\.)+/?|//[^\n]*|(<[^<>\s]+>)')


class GrammarMatcher:
    """The tokens that one sequence may go on with. Called by one thread at a time."""

    def __init__(self, matcher: "LLMatcher", words: int, name: str) -> None:
        """Take a matcher at its text's beginning; raise RequestError for a malformed or too complex grammar."""
        self._matcher, self._words, self._name = matcher, words, name
        self._check()

    @panics_raised()
    def mask(self) -> Int32:
        """Compute bits of tokens that may follow, int32 [words]; raise RequestError if that is too complex."""
        bits = np.zeros(self._words, np.int32)
        self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._check()
        return bits

    @panics_raised()
    def advance(self, token: int) -> Int32:
        """Go on with a token that the mask allows, and return the next mask."""
        self._matcher.consume_token(token)
        self._check()
        return self.mask()

    def _check(self) -> None:
        if self._matcher.is_error():
            raise RequestError(f"parameter '{self._name}': {_shortened(self._matcher.get_error())}")


class GrammarCompiler:
    """Compiles the grammars of requests, within limits of llguidance's `LLParserLimits`. Thread-safe."""

    def __init__(
        self, backend: Tokenizer, vocab_size: int, eos_ids: Set[int], limits: Mapping[str, Any] = LIMITS
    ) -> None:
        self._backend, self._eos_ids, self._limits = backend, sorted(eos_ids), limits
        # The tokenizer may know more tokens than the checkpoint has logits.
        self._vocab_size = max(vocab_size, backend.get_vocab_size(with_added_tokens=True))
        self._ids = {token.content: number for number, token in backend.get_added_tokens_decoder().items()}
        self._lock = threading.Lock()
        self._tokenizer: LLTokenizer | None = None

    @panics_raised()
    def compile(self, params: SamplingParams) -> GrammarMatcher | None:
        """Compile a request's grammar, if any; raise RequestError if malformed, unsupported or too complex."""
        name = next((name for name in GRAMMARS if getattr(params, name)), None)
        if name is None:
            return None
        if not self._eos_ids:
            raise RequestError(
                f"parameter '{name}' needs an end: this checkpoint names no end-of-sequence token"
            )
        from llguidance import LLMatcher, LLParserLimits, grammar_from

        tokenizer = self._prepare()
        try:
            source = grammar_from(name, getattr(params, name))  # type: ignore[arg-type]
        except ValueError as error:
            raise RequestError(f"parameter '{name}': {_shortened(str(error))}") from None
        if params.ebnf:  # it may name tokens, and llguidance does not know their names
            source = TOKEN_NAME.sub(self._by_id, source)
        if params.reasoning:
            source = self._behind_reasoning(source, *params.reasoning)
        matcher = LLMatcher(tokenizer, source, log_level=0, limits=LLParserLimits(**self._limits))
        return GrammarMatcher(matcher, -(-self._vocab_size // 32), name)

    def _behind_reasoning(self, source: str, *marks: str) -> str:
        """Let a grammar hold behind the last mark; without the first of two, it holds for the whole text."""
        answer = json.loads(source) if source.startswith("{") else {"grammars": [{"lark_grammar": source}]}
        answer["grammars"][0]["name"] = "answer"
        *begin, end = marks
        known = re.escape(end).replace("/", r"\/")
        # A token is no text, and a text may end in the middle of a token.
        reasoning = (
            f"reasoning: TEXT <[{self._ids[end]}]>\nTEXT: /(.|\\n)*/ & ~/(.|\\n)*{known}(.|\\n)*/"
            if end in self._ids
            else f"reasoning[lazy]: /(.|\\n)*{known}/"
        )
        first = " ".join(
            f"<[{self._ids[mark]}]>" if mark in self._ids else json.dumps(mark) for mark in begin
        )
        start = f"start: ({first} reasoning SPACE){'?' if begin else ''} @answer"
        outer = f"{start}\n{reasoning}\nSPACE: /[ \\t\\r\\n]*/"
        return json.dumps({**answer, "grammars": [{"lark_grammar": outer}, *answer["grammars"]]})

    def _by_id(self, found: re.Match[str]) -> str:
        return f"<[{self._ids[found[1]]}]>" if found[1] in self._ids else found[0]

    def _prepare(self) -> "LLTokenizer":
        """Make the tokenizer for the first request with a grammar: it takes a second and some memory."""
        from llguidance import LLTokenizer

        with self._lock:
            if self._tokenizer is None:
                try:
                    self._tokenizer = LLTokenizer(
                        spelling_out(self._backend), n_vocab=self._vocab_size, eos_token=self._eos_ids
                    )
                except ValueError as error:
                    log.warning("no structured output with this tokenizer: %s", _shortened(str(error)))
                    raise RequestError(
                        "this checkpoint's tokenizer does not allow structured output"
                    ) from None
            return self._tokenizer


def spelling_out(tokenizer: Tokenizer) -> str:
    """Write a tokenizer to which the names of special tokens are text like any other.

    llguidance forces a text to be the tokens into which the tokenizer cuts it, and takes no added token for text.
    So added tokens get secret names, but for those that are text and a piece of the model's own vocabulary.
    """
    state, secret = json.loads(tokenizer.to_str()), secrets.token_hex(8)
    model = state["model"]
    pieces = dict(model["vocab"])

    def is_text(token: dict[str, Any]) -> bool:
        is_byte = model.get("byte_fallback") and BYTE_TOKEN.fullmatch(token["content"])
        return token["content"] in pieces and bool(is_byte or not token["special"])

    added = [token for token in state["added_tokens"] if not is_text(token)]
    names = {token["content"]: f"<{secret}.{token['id']}>" for token in added}
    state["added_tokens"] = [{**token, "content": names[token["content"]]} for token in added]
    renamed = [(names.get(piece, piece), value) for piece, value in pieces.items()]
    model["vocab"] = renamed if model["type"] == "Unigram" else dict(renamed)
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    return json.dumps(state)


def _shortened(message: str) -> str:
    """Shorten a message to its first line and the reason; say so if a limit of the library was met."""
    line, *others = message.strip().splitlines() or ["not a valid grammar"]
    if line.startswith("panic"):
        return "too large or too complex"
    why = next((f" {each.removeprefix(REASON)}" for each in others if each.startswith(REASON)), "")[
        :MAX_MESSAGE
    ]
    room = MAX_MESSAGE - len(why)
    return (line if len(line) <= room else line[:room] + "...") + why
