"""Panics of libraries written in Rust, as ordinary exceptions."""

from collections.abc import Iterator
from contextlib import contextmanager


class Panic(Exception):
    """A library gave up: the tokenizers, for example, because a regular expression backtracked too long."""


@contextmanager
def panics_raised() -> Iterator[None]:
    """Turn a library's ``PanicException``, which is no `Exception` and would end the thread, into a `Panic`."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(str(error)) from error
