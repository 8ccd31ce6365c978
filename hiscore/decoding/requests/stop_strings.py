"""The end of a sequence, and the part of its text that may be sent before the end is known.

Stop strings are found by an Aho-Corasick automaton, one step per character. So they are found across tokens,
and the first one completed ends the sequence. The automaton's depth is the length of the text that may yet
turn out to begin a stop string: that much is held back.
"""

from collections import deque
from collections.abc import Sequence, Set
from typing import Literal, NamedTuple, Protocol

from hiscore.decoding.requests.sampling_params import SamplingParams

FinishReason = Literal["", "stop", "length"]


class Detokenizer(Protocol):
    """Tokens to text, piece by piece: `hiscore.tokenization.detokenizer.IncrementalDetokenizer`."""

    def push(self, token: int) -> str: ...
    def flush(self) -> str: ...


class NewText(NamedTuple):
    """Text that may be sent, and the reason for which the sequence ended ("" if it goes on)."""

    text: str
    finish_reason: FinishReason


class StopStrings:
    """Passes text up to the first stop string, with it if `include`, and holds back what may begin one."""

    def __init__(self, stops: Sequence[str], include: bool = False) -> None:
        self.matched = ""
        self._include = include
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]
        self._match = [0]  # length of the longest stop string that ends in a state
        for stop in stops:
            self._add(stop)
        self._link()
        self._state = 0
        self._held = ""

    def push(self, text: str, may_stop: bool = True) -> tuple[str, bool]:
        """Return the text to send now, and whether a stop string was found, for which `may_stop` must be true."""
        self._held += text
        state, first = self._state, len(self._held) - len(text)
        for end, character in enumerate(text, first + 1):
            while state and character not in self._next[state]:
                state = self._fallback[state]
            state = self._next[state].get(character, 0)
            if may_stop and self._match[state]:
                start = end - self._match[state]
                self.matched = self._held[start:end]
                return self._release(end if self._include else start), True
        self._state = state
        return self._release(len(self._held) - self._depth[state]), False

    def flush(self) -> str:
        """Text that was held back, since nothing follows that could complete a stop string."""
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
        """Set each state's fallback: the longest proper suffix of its text that begins a stop string."""
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


class AnswerStops:
    """Stop strings that hold for a model's answer, and not for its reasoning, which may come first.

    `marks` are those around the reasoning, or its end alone if it has begun; none: everything is the answer.
    """

    def __init__(self, stops: Sequence[str], include: bool = False, marks: Sequence[str] = ()) -> None:
        self._answer = StopStrings(stops, include)
        self._begin, self._held = "".join(marks[:-1]), ""
        # Without stop strings, it makes no difference.
        self._reasoning = StopStrings(marks[-1:], include=True) if stops and marks else None

    @property
    def matched(self) -> str:
        return self._answer.matched

    def push(self, text: str, may_stop: bool = True, last: bool = False) -> tuple[str, bool]:
        """Take more text, as `StopStrings.push` does; after the `last`, what is held back begins no reasoning."""
        if self._reasoning is None:
            return self._answer.push(text, may_stop)
        text, self._held = self._held + text, ""
        start = text.lstrip()[: len(self._begin)]
        if start != self._begin:
            if self._begin.startswith(start) and not last:
                self._held = text
                return "", False
            self._reasoning = None
            return self._answer.push(text, may_stop)
        self._begin = ""
        text, ended = self._reasoning.push(text)
        if not ended:
            return text, False
        behind, self._reasoning = self._reasoning.flush(), None
        answer, stopped = self._answer.push(behind, may_stop)
        return text + answer, stopped

    def flush(self) -> str:
        return (self._reasoning.flush() if self._reasoning else "") + self._answer.flush()


class StopChecker:
    """Turns one sequence's tokens into text, none without a detokenizer, and finds the reason to end."""

    def __init__(
        self, params: SamplingParams, eos_ids: Set[int], detokenizer: Detokenizer | None = None
    ) -> None:
        self.end_ids = params.stop_token_ids if params.ignore_eos else params.stop_token_ids | eos_ids
        self._tokens_left = params.max_tokens
        self._free_tokens = params.min_tokens
        self._stop_strings = AnswerStops(params.stop, params.include_stop_str_in_output, params.reasoning)
        self._detokenizer = detokenizer

    def append(self, token: int) -> NewText:
        """Take one more token; none may follow a finish reason. A token that ends the sequence adds no text."""
        self._tokens_left -= 1
        self._free_tokens -= 1
        if token in self.end_ids:
            return NewText(self._flush()[0], "stop")
        text, stopped = (
            self._stop_strings.push(self._detokenizer.push(token), self._free_tokens < 0)
            if self._detokenizer
            else ("", False)
        )
        if not stopped and not self._tokens_left:
            rest, stopped = self._flush()
            return NewText(text + rest, "stop" if stopped else "length")
        return NewText(text, "stop" if stopped else "")

    @property
    def matched_stop(self) -> str:
        """The stop string that ended the sequence; empty if none did."""
        return self._stop_strings.matched

    def flush(self) -> str:
        """The text still held back, if the sequence ends for another reason: a cancellation, an error."""
        return self._flush()[0]

    def _flush(self) -> tuple[str, bool]:
        text, stopped = (
            self._stop_strings.push(self._detokenizer.flush(), self._free_tokens < 0, last=True)
            if self._detokenizer
            else ("", False)
        )
        return (text, True) if stopped else (text + self._stop_strings.flush(), False)
