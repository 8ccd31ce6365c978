"""Functions called `make_*` or `*_of` change nothing that they are given (CONTRIBUTING.md)."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


def changed_arguments(source: str) -> list[str]:
    """Assignments of such functions into their own arguments; a method may keep what it made in itself."""
    return [
        f"{function.name}: {ast.unparse(target)}"
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef) and is_maker(function.name)
        for node in ast.walk(function)
        for target in targets(node)
        if isinstance(target, ast.Attribute | ast.Subscript) and root(target) in arguments(function)
    ]


def is_maker(name: str) -> bool:
    return name.lstrip("_").startswith("make_") or name.endswith("_of")


def targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign | ast.Delete):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def root(target: ast.expr) -> str:
    while isinstance(target, ast.Attribute | ast.Subscript):
        target = target.value
    return target.id if isinstance(target, ast.Name) else ""


def arguments(function: ast.FunctionDef) -> set[str]:
    given = function.args
    return {each.arg for each in [*given.posonlyargs, *given.args, *given.kwonlyargs]} - {"self"}


def test_makers_change_nothing() -> None:
    kernels = ROOT / "hiscore" / "kernels"  # they return nothing: they write
    files = [path for path in sorted((ROOT / "hiscore").rglob("*.py")) if kernels not in path.parents]
    found = {path.name: changed for path in files if (changed := changed_arguments(path.read_text()))}
    assert found == {}


@pytest.mark.parametrize(
    "statement", ["sequence.mask = None", "sequence.pages[0] = 1", "sequence.read += 1", "del sequence.mask"]
)
def test_control_a_maker_that_changes_its_argument_is_noticed(statement: str) -> None:
    assert changed_arguments(f"def make_batch(sequence):\n    {statement}") != []
    assert changed_arguments(f"def release(sequence):\n    {statement}") == []
