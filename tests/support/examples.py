"""Examples that controls need."""

from collections.abc import Callable
from typing import TypeVar

from hypothesis import Phase, find, settings
from hypothesis.errors import NoSuchExample
from hypothesis.strategies import SearchStrategy

Example = TypeVar("Example")
SEARCHED = settings(max_examples=10_000, phases=[Phase.generate])


def has_example(examples: SearchStrategy[Example], holds: Callable[[Example], bool]) -> bool:
    """Whether one of many examples has a property; a smaller one is not looked for, which takes far longer."""
    try:
        find(examples, holds, settings=SEARCHED)
    except NoSuchExample:
        return False
    return True
