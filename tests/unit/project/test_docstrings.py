"""Docstrings open with a verb or a noun (CONTRIBUTING.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]

OPENINGS = {"What", "How", "Whether", "Where", "Of", "As", "Those", "If"}
"""First words after which a reader does not yet know what is spoken of."""
LEFT = 599
"""Docstrings of hiscore/ that still open with one of them: the number may only shrink."""


def headless(source: str) -> list[str]:
    """First lines of docstrings that open with one of `OPENINGS`; a string below an attribute is one, too."""
    strings = [
        node.value.value
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ]
    return [
        text.strip().splitlines()[0] for text in strings if text.split()[:1] and text.split()[0] in OPENINGS
    ]


def test_no_new_docstring_opens_without_a_noun() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {line}"
        for path in sorted((ROOT / "hiscore").rglob("*.py"))
        for line in headless(path.read_text())
    ]
    assert len(found) <= LEFT, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "is_headless"),
    [
        ("What a device has.", True),
        ("Whether it fits.", True),
        ("\n    Of pairs, how many.", True),
        ("Return what a device has.", False),
        ("Iffy words.", False),
        ("The pages of a sequence.", False),
    ],
)
def test_control_an_opening_is_noticed(text: str, is_headless: bool) -> None:
    below_a_function = f'def f():\n    """{text}"""\n'
    below_an_attribute = f'x = 3\n"""{text}"""\n'
    assert bool(headless(below_a_function)) == bool(headless(below_an_attribute)) == is_headless
