"""When a sequence ends, and which of its text may be sent before that is known.

Stop strings are found by an Aho-Corasick automaton, one step for each character. So they are found across tokens,
the first to be complete ends the sequence, and the automaton's depth is the length of the text that may yet
turn out to begin one: that much is held back.
"""

from collections import deque
from collections.abc import Sequence, Set
from typing import Literal, NamedTuple, Protocol

from hiscore.decoding.sampling_params import DecodeOptions

FinishReason = Literal["", "stop", "length"]


class Detokenizer(Protocol):
    """Tokens to text, piece by piece: `hiscore.tokenization.detokenizer.TextStream`."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


class Taken(NamedTuple):
    """What one more token adds: text that may be sent, and why the sequence ended ('' if it goes on)."""

    text: str
    finish_reason: FinishReason


class StopStrings:
    """Passes text on up to the first stop string, and holds back what may begin one."""

    def __init__(self, stops: Sequence[str]) -> None:
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [0]  # length of the longest stop string that ends in a state
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0
        self._held = ""

    def push(self, text: str) -> tuple[str, bool]:
        """The text that may be sent now, and whether a stop string was found: it and what follows are dropped."""
        self._held += text
        state, first = self._state, len(self._held) - len(text)
        for end, character in enumerate(text, first + 1):
            while state and character not in self._next[state]:
                state = self._fallback[state]
            state = self._next[state].get(character, 0)
            if self._match[state]:
                return self._release(end - self._match[state]), True
        self._state = state
        return self._release(len(self._held) - self._depth[state]), False

    def flush(self) -> str:
        """What was held back: nothing follows that could complete a stop string."""
        return self._release(len(self._held))

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text

    def _add(self, stop: str) -> None:
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._depth.append(self._depth[state] + 1)
                self._match.append(0)
            state = self._next[state][character]
        self._match[state] = len(stop)

    def _link(self) -> None:
        """The state to fall back to: the longest proper suffix of what was read that begins a stop string."""
        self._fallback = [0] * len(self._next)
        states = deque(self._next[0].values())
        while states:
            state = states.popleft()
            self._match[state] = self._match[state] or self._match[self._fallback[state]]
            for character, child in self._next[state].items():
                link = self._fallback[state]
                while link and character not in self._next[link]:
                    link = self._fallback[link]
                self._fallback[child] = self._next[link].get(character, 0)
                states.append(child)


class StreamEnd:
    """Follows one sequence: takes its tokens, gives the text to send and the reason to end."""

    def __init__(self, options: DecodeOptions, eos_ids: Set[int], text: Detokenizer | None = None) -> None:
        """text: None without a tokenizer: then all text is empty, and no stop string can match."""
        self._ends = options.stop_token_ids if options.ignore_eos else options.stop_token_ids | eos_ids
        self._left = options.max_tokens
        self._strings = StopStrings(options.stop)
        self._text = text

    def take(self, token: int) -> Taken:
        """One more token, and no more once a reason was given. An id that ends the sequence adds no text."""
        self._left -= 1
        if token in self._ends:
            return Taken(self._rest()[0], "stop")
        text, found = self._strings.push(self._text.push(token)) if self._text else ("", False)
        if not found and not self._left:
            rest, found = self._rest()
            return Taken(text + rest, "stop" if found else "length")
        return Taken(text, "stop" if found else "")

    def cancel(self) -> str:
        """The text still held back, where a sequence ends for another reason than its tokens."""
        return self._rest()[0]

    def _rest(self) -> tuple[str, bool]:
        text, found = self._strings.push(self._text.flush()) if self._text else ("", False)
        return (text, True) if found else (text + self._strings.flush(), False)
