"""Rows of matrices by tier (tests/README.md): the first in each run, the others where every row is tried."""

from typing import Any

import pytest


def first_of(*rows: Any, others: pytest.MarkDecorator = pytest.mark.exhaustive) -> list[Any]:
    """Mark every row of a parametrized test but the first.

    Args:
        rows: Values, or what `pytest.param` makes of them with ids of their own.
    """
    return [rows[0], *(_marked(row, others) for row in rows[1:])]


def _marked(row: Any, mark: pytest.MarkDecorator) -> Any:
    if hasattr(row, "marks"):  # made by `pytest.param`
        return pytest.param(*row.values, marks=[*row.marks, mark], id=row.id)
    return pytest.param(*row, marks=mark) if isinstance(row, tuple) else pytest.param(row, marks=mark)
