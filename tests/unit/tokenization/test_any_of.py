"""One expression finds the longest word at each place, and tells words apart letter by letter."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.tokenization import text_encoder as module
from hiscore.tokenization.text_encoder import any_of

WORDS = st.text("ab.|", min_size=1, max_size=4)


@given(st.lists(WORDS, max_size=8), st.text("ab.|", max_size=8))
def test_it_matches_the_longest_word_at_the_first_place(words: list[str], text: str) -> None:
    found = any_of(words).search(text)
    assert (found is not None) == any(word in text for word in words)
    if found:
        place = min(text.find(word) for word in words if word in text)
        assert found.start() == place
        assert found.group() == max((word for word in words if text.startswith(word, place)), key=len)


def test_words_that_begin_alike_share_a_beginning() -> None:
    """Else each is tried at every place: a long text of `<` would hold up everybody."""
    words = [f"<SPECIAL_{number}>" for number in range(1000)]
    control = "|".join(map(re.escape, words))
    assert control.count("SPECIAL") == 1000
    assert any_of([*words, "<s>", "[INST]"]).pattern.count("SPECIAL") == 1


@pytest.mark.slow
def test_words_may_share_any_number_of_beginnings(monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["a" * number + "b" for number in range(1000)]
    expression = any_of([*words, "a" * 200])
    assert expression.search("aac" * 9) is None
    for text in ("aab", "a" * 300 + "b", "a" * 200):
        assert expression.fullmatch(text)
    monkeypatch.setattr(module, "MOST_LEVELS", 10**4)
    with pytest.raises(RecursionError):
        any_of(words)
