"""The end of a sequence, and the part of its text that may be sent before the end is known.

Stop strings are searched in new text and what was held back before it. So they are found across tokens, and the
first one completed ends the sequence. The end of a text that may yet turn out to begin a stop string is held back.
"""

from collections.abc import Iterator, Sequence, Set
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
        self._stops, self._include = stops, include
        self._beginnings = {stop[:length] for stop in stops for length in range(1, len(stop))}
        self._longest = max(map(len, stops), default=1) - 1
        self._held = ""

    def push(self, text: str, may_stop: bool = True) -> tuple[str, bool]:
        """Return the text to send now, and whether a stop string was found, for which `may_stop` must be true."""
        known = len(self._held)
        self._held += text
        if may_stop and (ends := [*self._completed(known)]):
            end = min(ends)
            self.matched = max((stop for stop in self._stops if self._held.endswith(stop, 0, end)), key=len)
            return self._release(end if self._include else end - len(self.matched)), True
        longest = min(self._longest, len(self._held))
        held = next((size for size in range(longest, 0, -1) if self._held[-size:] in self._beginnings), 0)
        return self._release(len(self._held) - held), False

    def flush(self) -> str:
        """Text that was held back, since nothing follows that could complete a stop string."""
        return self._release(len(self._held))

    def _completed(self, known: int) -> Iterator[int]:
        """Yield the ends of stop strings that the text behind the first `known` characters completes."""
        for stop in self._stops:
            if (start := self._held.find(stop, max(0, known - len(stop) + 1))) >= 0:
                yield start + len(stop)

    def _release(self, length: int) -> str:
        text, self._held = self._held[:length], self._held[length:]
        return text


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
