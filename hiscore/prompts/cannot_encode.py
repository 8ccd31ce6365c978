"""Callers' texts that no prompt can be made of."""

from collections.abc import Iterator
from contextlib import contextmanager

from hiscore.tokenization.panics import Panic, panics_raised


class CannotEncode(ValueError):
    """A caller's text would become a protected token all the same, or the library gives up on it."""


@contextmanager
def panics_refused() -> Iterator[None]:
    """Turn a library's panic into `CannotEncode`."""
    try:
        with panics_raised():
            yield
    except Panic:
        raise CannotEncode("the tokenizer gives up on it") from None
