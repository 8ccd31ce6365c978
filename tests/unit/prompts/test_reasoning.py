"""Reasoning is told from the answer, however the text is cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.prompts.answer_parts import Content, Reasoning, ReasoningReader


def read(begun: bool, pieces: list[str]) -> tuple[str, str]:
    reader = ReasoningReader(begun)
    parts = [*(part for piece in pieces for part in reader.push(piece)), *reader.finish()]
    return (
        "".join(part.text for part in parts if isinstance(part, Reasoning)),
        "".join(part.text for part in parts if isinstance(part, Content)),
    )


@pytest.mark.parametrize(
    ("begun", "text", "reasoning", "content"),
    [
        (False, "<think>\nA  b.\nC\n</think>\n\nYes.\n", "A  b.\nC", "Yes.\n"),
        (True, "\nA b.\n</think>\n\nYes.", "A b.", "Yes."),
        (True, "A </thin", "A </thin", ""),
        (False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        (False, " Yes <think> no</think>", "", " Yes <think> no</think>"),
        (False, "<thin", "", "<thin"),
        (False, "<b>Yes", "", "<b>Yes"),
        (False, "", "", ""),
        (False, "<think>a</think>b<think>c</think>", "a", "b<think>c</think>"),
    ],
)
def test_it_is_told_apart(begun: bool, text: str, reasoning: str, content: str) -> None:
    assert read(begun, [text]) == (reasoning, content)
    assert read(begun, list(text)) == (reasoning, content)


@given(st.text(st.sampled_from("<>/think \n")), st.booleans(), st.integers(1, 5))
def test_pieces_make_no_difference(text: str, begun: bool, size: int) -> None:
    pieces = [text[at : at + size] for at in range(0, len(text), size)]
    assert read(begun, pieces) == read(begun, [text])
