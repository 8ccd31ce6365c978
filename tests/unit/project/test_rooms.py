"""A file of under 60 lines needs two importers: with one, it belongs in that importer (CONTRIBUTING.md)."""

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FEW_LINES = 60
LEFT = 13
"""Short files with one importer today: the number may only shrink."""


def imported(source: str) -> set[str]:
    """Names that a module imports, wherever it does, and what they may be members of."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def small_rooms(sources: dict[str, str]) -> list[str]:
    """Name the short modules that fewer than two others import; programs (``a.__main__``) need no importer."""
    imports = {module: imported(source) for module, source in sources.items()}
    return [
        module
        for module, source in sources.items()
        if len(source.splitlines()) < FEW_LINES
        and not module.endswith("__main__")
        and sum(module in names for other, names in imports.items() if other != module) < 2
        and not any(other.startswith(f"{module}.") for other in sources)
    ]


def test_no_new_room_is_for_one_importer_alone() -> None:
    files = [*(ROOT / "hiscore").rglob("*.py"), *(ROOT / "model_repository").rglob("*.py")]
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path.read_text()
        for path in sorted(files)
    }
    found = [name for name in small_rooms(sources) if name.startswith("hiscore.")]
    assert len(found) <= LEFT, "\n".join(found)


def test_control_a_room_for_one_importer_is_noticed() -> None:
    sources = {
        "a": "import b\nfrom c.d import e",
        "b": "from c import d",
        "c": "",
        "c.d": "e = 1",
        "f": "x = 1\n" * FEW_LINES,
    }
    assert small_rooms(sources) == ["a", "b"]
