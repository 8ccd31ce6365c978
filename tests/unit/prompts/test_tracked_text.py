"""Text that templates change is what plain text would be, and each character keeps its author."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.prompts.chat import compiled, render
from hiscore.prompts.tracked_text import CALLERS, OWN, TrackedText, own

# Capitals and line breaks are the template's own, so that every character says who wrote it.
CAPITALS = "AB\n"
TEXTS = st.text(st.sampled_from("ab AB\n"), max_size=12)
CHANGES: dict[str, Callable[[Any, Any], Any]] = {
    "added": lambda text, other: text + other,
    "added behind": lambda text, other: other + text,
    "added to a plain text": lambda text, other: "ab" + text,
    "stripped": lambda text, other: text.strip(),
    "stripped of letters": lambda text, other: text.strip("aA"),
    "stripped on the left": lambda text, other: text.lstrip(),
    "stripped on the right": lambda text, other: text.rstrip("\n"),
    "cut": lambda text, other: text[1:-2],
    "cut from behind": lambda text, other: text[::-2],
    "last": lambda text, other: text[-1:] and text[-1],
    "split": lambda text, other: text.split(),
    "split once": lambda text, other: text.split(None, 1),
    "split at": lambda text, other: text.split(other) if other else [],
    "replaced": lambda text, other: text.replace("a", other),
    "replaced once": lambda text, other: text.replace("A", other, 1),
    "joined": lambda text, other: other.join([text, "b", text]),
    "joined from nothing": lambda text, other: other.join([]),
    "as text": lambda text, other: str(text),
}


def tracked(text: str) -> TrackedText:
    return TrackedText(text, marks(text))


def marks(text: str) -> bytes:
    return b"".join(OWN if character in CAPITALS else CALLERS for character in text)


@pytest.mark.parametrize("change", CHANGES)
@given(text=TEXTS, other=TEXTS)
def test_a_change_keeps_track_of_every_character(change: str, text: str, other: str) -> None:
    plain = CHANGES[change](text, other)
    found = CHANGES[change](tracked(text), tracked(other))
    assert found == plain
    for each in found if isinstance(found, list) else [found]:
        assert isinstance(each, TrackedText) or not each
        assert not each or each._marks == marks(each)


def test_what_is_not_tracked_counts_as_a_callers() -> None:
    text = own("A{}<x>")
    for lost in (text.format("b"), text.upper(), text.zfill(9), f"{text}", TrackedText(str.lower(text))):
        assert OWN not in TrackedText(lost)._marks


@pytest.mark.parametrize(
    ("source", "expected", "marks"),
    [
        ("A{{ 'B' ~ x ~ 1 }}", "ABa<b1", "oocccc"),
        ("{% set y = x %}{% set x %}A{{ y }}{% endset %}{{ x | trim }}", "Aa<b", "occc"),
        ("{% macro m(y, z='B') %}A{{ y }}{{ z }}{% endmacro %}{{ (m(x) | trim)[:2] + 'B' }}", "AaB", "oco"),
        ("{% for each in ['A', 'B'] %}{{ each }}{% endfor %}{{ namespace(a='A').a + x }}", "ABAa<b", "oooccc"),
        ("{{ x.split('<')[1] if '<' in x and x.startswith('a<') else 'A' }}{{ {'k': 'B'}['k'] }}", "bB", "co"),
        ("{{ ('A<' ~ x).replace('<', 'B') }}{{ x | replace('<', 'A') }}", "ABaBbaAb", "oococccc"),
        ("{{ [x, 'A'] | tojson }}{{ x == 'a<b' }}", '["a<b", "A"]True', "c" * 16),
    ],
)  # fmt: skip
def test_templates_see_texts_as_they_are_and_keep_track_of_their_own(
    source: str, expected: str, marks: str
) -> None:
    found = render(compiled(source), x="a<b")
    assert (found, found._marks.decode()) == (expected, marks)
