"""A sequence ends where it should, and text that may turn out to be part of a stop string is held back."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.requests.stop_strings import NewText, StopChecker, StopStrings
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


def test_control_the_automaton_needs_its_fallbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 'aa' of 'aab' comes another 'a': the last two still begin it."""
    assert sent_by(["aab"], list("aaab")) == (["", "", "a", ""], True)

    def no_fallbacks(self: StopStrings) -> None:
        self._fallback = [0] * len(self._next)

    monkeypatch.setattr(StopStrings, "_link", no_fallbacks)
    assert has_example(st.tuples(STOPS, PIECES), lambda case: not is_right(sent_by, *case))


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


def run(tokens: list[int], **options: object) -> list[NewText]:
    checker = StopChecker(SamplingParams(**{"max_tokens": 100, **options}), EOS, Letters())  # type: ignore[arg-type]
    taken = []
    for token in tokens:
        taken.append(checker.append(token))
        if taken[-1].finish_reason:
            break
    return taken


def test_an_end_token_ends_the_sequence_without_text() -> None:
    assert run([1, 2, 25, 3]) == [("b", ""), ("c", ""), ("", "stop")]


def test_ignored_end_tokens_are_tokens_like_others() -> None:
    assert run([1, 25, 3], ignore_eos=True) == [("b", ""), ("z", ""), ("d", "")]


def test_stop_ids_count_even_where_the_models_own_are_ignored() -> None:
    ids = frozenset({2, 25})
    assert run([1, 2], stop_token_ids=ids) == [("b", ""), ("", "stop")]
    assert run([1, 25], stop_token_ids=ids, ignore_eos=True) == [("b", ""), ("", "stop")]


def test_a_stop_string_across_tokens_is_cut_off() -> None:
    assert run([1, 2, 3, 4], stop=("cd",)) == [("b", ""), ("", ""), ("", "stop")]


def test_what_only_began_a_stop_string_is_sent_after_all() -> None:
    assert run([2, 4, 2], stop=("cd",), max_tokens=3) == [("", ""), ("ce", ""), ("c", "length")]


def test_the_last_token_may_be_an_end_token_or_complete_a_stop_string() -> None:
    assert run([1, 2], max_tokens=2) == [("b", ""), ("c", "length")]
    assert run([1, 25], max_tokens=2)[-1] == ("", "stop")
    assert run([1, 2], max_tokens=2, stop=("c",))[-1] == ("", "stop")


@pytest.mark.parametrize(("tokens", "reason"), [([1, 0, 25], "stop"), ([1, 0], "length")])
def test_the_end_sends_what_was_held_back(tokens: list[int], reason: str) -> None:
    """Half a character, and the beginning of a stop string before it."""
    taken = run(tokens, stop=("bx",), max_tokens=len(tokens))
    assert taken[-1] == ("ba", reason)


def test_a_stop_string_that_the_flushed_text_completes_counts() -> None:
    assert run([1, 0], stop=("ba",), max_tokens=2) == [("", ""), ("", "stop")]


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
    assert said == [NewText("a", ""), NewText("b", ""), NewText("b", ""), NewText("", "stop")]
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
