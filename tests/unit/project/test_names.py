"""A name means one thing: no two classes of hiscore/ share one."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]


def classes(source: str) -> list[str]:
    return [node.name for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]


def shared(sources: list[str]) -> set[str]:
    counts = Counter(name for source in sources for name in classes(source))
    return {name for name, count in counts.items() if count > 1}


def test_a_class_name_means_one_thing() -> None:
    found = shared([path.read_text() for path in (ROOT / "hiscore").rglob("*.py")])
    assert found == set(), "find a name that says what is different"


def test_control_a_second_class_of_a_name_is_noticed() -> None:
    assert shared(["class Cut: ...\nclass Tile: ...", "def f():\n    class Cut: ..."]) == {"Cut"}
