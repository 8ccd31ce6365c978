"""A text is searched for split points window by window, and the edges of windows hide none."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.tokenization import split_rule
from hiscore.tokenization.safe_splits import SPLIT_POINT
from hiscore.tokenization.split_rule import SplitRule

POINTS = {"behind alone": SPLIT_POINT, "on both sides": re.compile(r"(?<=[^\s_a]) (?=[^\s_b])")}
TEXTS = st.lists(st.sampled_from(["a", "b", "x" * 63, "x" * 64, " ", "  ", "_", "果", "、"])).map("".join)


@pytest.mark.parametrize("window", [1, 3, 64, 2**15])
@pytest.mark.parametrize("name", POINTS)
def test_ends_are_those_of_the_whole(name: str, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split_rule, "WINDOW", window)
    rule = SplitRule(POINTS[name])

    @given(TEXTS)
    def check(text: str) -> None:
        places = [match.start() for match in rule.point.finditer(text)]
        assert rule.first(text) == (places[0] if places else None)
        assert rule.last(text) == (places[-1] if places else None)

    check()
