"""A sequence ends where it should, and text that may turn out to be part of a stop string is held back."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.requests.stop_strings import AnswerStops, NewText, StopChecker, StopStrings
from tests.support.examples import has_example

# Few letters, so that stop strings overlap with themselves and each other.
STOPS = st.lists(st.text("ab", min_size=1, max_size=5), max_size=4)
PIECES = st.lists(st.text("abc", max_size=4), max_size=12)

Search = Callable[[Sequence[str], Sequence[str]], tuple[list[str], bool]]


def sent_by(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], bool]:
    """What is sent after each piece and at the end, and whether a stop string was found."""
    strings = StopStrings(stops)
    sent = []
    for piece in pieces:
        text, found = strings.push(piece)
        sent.append(text)
        if found:
            return sent, True
    return [*sent, strings.flush()], False


def cut(text: str, stops: Sequence[str]) -> str | None:
    """The text before the stop string completed first, the longest if several are; None without one."""
    for end in range(len(text) + 1):
        ends_here = [len(stop) for stop in stops if text[:end].endswith(stop)]
        if ends_here:
            return text[: end - max(ends_here)]
    return None


def held(text: str, stops: Sequence[str]) -> int:
    """The length of the longest suffix of a text that begins a stop string."""
    starts = {stop[:length] for stop in stops for length in range(len(stop))} | {""}
    return max(len(start) for start in starts if text.endswith(start))


def is_right(search: Search, stops: Sequence[str], pieces: Sequence[str]) -> bool:
    """Whether exactly the text before the first stop string is sent, and each part as soon as possible."""
    sent, found = search(stops, pieces)
    text = "".join(pieces)
    if cut(text, stops) is not None:
        return found and "".join(sent) == cut(text, stops)
    sofar = ["".join(pieces[:count]) for count in range(1, len(pieces) + 1)]
    early = all(
        "".join(sent[: i + 1]) == text[: len(text) - held(text, stops)] for i, text in enumerate(sofar)
    )
    return not found and early and "".join(sent) == text


@pytest.mark.slow
@settings(max_examples=1000)
@example(["aabb", "ab"], ["aab"])
@example(["aaabb", "ba"], ["aaaba"])
@given(STOPS, PIECES)
def test_stop_strings_against_a_plain_search(stops: list[str], pieces: list[str]) -> None:
    assert is_right(sent_by, stops, pieces)


def within_pieces(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], bool]:
    for i, piece in enumerate(pieces):
        if (before := cut(piece, stops)) is not None:
            return [*pieces[:i], before], True
    return [*pieces, ""], False


def all_at_the_end(stops: Sequence[str], pieces: Sequence[str]) -> tuple[list[str], bool]:
    before = cut("".join(pieces), stops)
    nothing = [""] * len(pieces)
    return ([*nothing, "".join(pieces)], False) if before is None else ([*nothing, before], True)


@pytest.mark.parametrize("search", [within_pieces, all_at_the_end])
def test_control_a_wrong_search_is_found(search: Search) -> None:
    assert has_example(st.tuples(STOPS, PIECES), lambda case: not is_right(search, *case))


def test_control_the_search_needs_all_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 'aa' of 'aab' comes another 'a': the last two still begin it."""
    assert sent_by(["aab"], list("aaab")) == (["", "", "a", ""], True)
    monkeypatch.setattr(StopStrings, "_completed", lambda self, known: iter(()))
    assert has_example(st.tuples(STOPS, PIECES), lambda case: not is_right(sent_by, *case))


def test_what_was_completed_too_early_does_not_stop_later() -> None:
    """'ab' was complete while nothing could stop the text, and is held back since 'xabz' may follow."""
    strings = StopStrings(["ab", "xabz"])
    assert strings.push("xab", may_stop=False) == ("", False)
    assert strings.push("q") == ("xabq", False)


@pytest.mark.parametrize("marks", [(">>",), ("<<", ">>")])
@given(
    st.lists(st.text("a<> ", min_size=1, max_size=4), max_size=8),
    st.lists(st.text("a<>", min_size=1, max_size=3)),
)
def test_stop_strings_hold_for_the_answer_and_not_for_reasoning(
    marks: Sequence[str], pieces: list[str], stops: list[str]
) -> None:
    strings = AnswerStops(stops, marks=marks)
    sent, found = "", False
    for piece in [*pieces, ""]:
        if not found:
            text, found = strings.push(piece, last=not piece)
            sent += text
    sent += "" if found else strings.flush()
    text = "".join(pieces)
    reasons = len(marks) == 1 or text.lstrip().startswith("<<")
    before, mark, behind = text.partition(">>") if reasons else ("", "", text)
    expected = before + mark + ("".join(sent_by(stops, [behind])[0]) if mark or not reasons else "")
    assert (sent, found) == (expected, sent_by(stops, [behind])[1])


class Letters:
    """Token n is the n-th letter; token 0 is half a character, which the next one completes."""

    def __init__(self) -> None:
        self.half = ""

    def push(self, token: int) -> str:
        text, self.half = self.half.upper() + chr(ord("a") + token), ""
        if token == 0:
            text, self.half = "", "a"
        return text

    def flush(self) -> str:
        return self.half


EOS = frozenset({25})


IDS = frozenset({2, 25})


@pytest.mark.parametrize(
    ("tokens", "options", "taken"),
    {
        "an end token has no text": ([1, 2, 25, 3], {}, ["b", "c", ("", "stop")]),
        "ignored, it is one like others": ([1, 25, 3], {"ignore_eos": True}, ["b", "z", ("d", "length")]),
        "ids of a request": ([1, 2], {"stop_token_ids": IDS}, ["b", ("", "stop")]),
        "count even if ignored": ([1, 25], {"stop_token_ids": IDS, "ignore_eos": True}, ["b", ("", "stop")]),
        "cut off across tokens": ([1, 2, 3, 4], {"stop": ("cd",)}, ["b", "", ("", "stop")]),
        "sent after all": ([2, 4, 2], {"stop": ("cd",)}, ["", "ce", ("c", "length")]),
        "the last token": ([1, 2], {}, ["b", ("c", "length")]),
        "the last is an end token": ([1, 25], {}, ["b", ("", "stop")]),
        "the last completes a stop string": ([1, 2], {"stop": ("c",)}, ["b", ("", "stop")]),
        # Half a character, and the beginning of a stop string before it.
        "held back until an end token": ([1, 0, 25], {"stop": ("bx",)}, ["", "", ("ba", "stop")]),
        "held back until the last": ([1, 0], {"stop": ("bx",)}, ["", ("ba", "length")]),
        "completed by what is flushed": ([1, 0], {"stop": ("ba",)}, ["", ("", "stop")]),
    }.values(),
)
def test_text_and_end_of_each_token(tokens: list[int], options: dict[str, Any], taken: list[Any]) -> None:
    """max_tokens is their number."""
    checker = StopChecker(SamplingParams(max_tokens=len(tokens), **options), EOS, Letters())
    expected = [(each, "") if isinstance(each, str) else each for each in taken]
    assert [checker.append(token) for token in tokens[: len(taken)]] == expected


def test_cancelling_sends_what_was_held_back() -> None:
    checker = StopChecker(SamplingParams(stop=("bx",)), EOS, Letters())
    assert checker.append(1) == ("", "")
    assert checker.flush() == "b"


def test_without_a_tokenizer_there_are_only_ids() -> None:
    checker = StopChecker(SamplingParams(max_tokens=3), EOS)
    assert [checker.append(token) for token in (1, 0, 2)] == [("", ""), ("", ""), ("", "length")]
    assert StopChecker(SamplingParams(), EOS).append(25) == ("", "stop")


def test_the_stop_string_found_is_named_and_sent_on_request() -> None:
    left_out, included = StopStrings(["bc", "abcd"]), StopStrings(["bc", "abcd"], include=True)
    assert (left_out.push("xab"), included.push("xab")) == (("x", False), ("x", False))
    assert (left_out.push("cd"), included.push("cd")) == (("a", True), ("abc", True))
    assert left_out.matched == included.matched == "bc"
    assert StopStrings(["a"]).matched == ""


def test_before_min_tokens_a_stop_string_is_text() -> None:
    params = SamplingParams(max_tokens=9, stop=("b", "xy"), min_tokens=3)
    checker = StopChecker(params, frozenset(), Spelled(["ab", "b", "x", "ybz"]))
    said = [checker.append(0) for _ in range(4)]
    assert said == [NewText("ab", ""), NewText("b", ""), NewText("", ""), NewText("", "stop")]
    assert checker.matched_stop == "xy"
    control = StopChecker(replace(params, min_tokens=0), frozenset(), Spelled(["ab"]))
    assert control.append(0) == NewText("a", "stop")


class Spelled:
    """A detokenizer whose tokens have these texts, in turn."""

    def __init__(self, texts: list[str]) -> None:
        self._texts = iter(texts)

    def push(self, token: int) -> str:
        return next(self._texts)

    def flush(self) -> str:
        return ""
