"""Texts on which a library written in Rust gives up, as exceptions of one kind."""

from collections.abc import Iterator
from contextlib import contextmanager


class Panic(Exception):
    """A library gave up: the tokenizers, for example, because a regular expression backtracked too long."""


@contextmanager
def panics_raised() -> Iterator[None]:
    """Turn what a library raises of a text into a `Panic`.

    A ``PanicException`` is no `Exception` and would end the thread. For a character that has no token, in a
    vocabulary without an unknown one, the tokenizers raise a plain `Exception`.
    """
    try:
        yield
    except BaseException as error:
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise Panic(str(error)) from error


class CannotEncode(ValueError):
    """A caller's text would become a protected token all the same, or the library gives up on it."""


@contextmanager
def panics_refused() -> Iterator[None]:
    """Turn a panic over a caller's text into `CannotEncode`."""
    try:
        with panics_raised():
            yield
    except Panic:
        raise CannotEncode("the tokenizer gives up on it") from None
