"""Panics of libraries written in Rust, as ordinary exceptions."""

from collections.abc import Iterator
from contextlib import contextmanager


class Panic(Exception):
    """A library gave up: the tokenizers, for example, because a regular expression backtracked too long."""


@contextmanager
def panics_raised() -> Iterator[None]:
    """Turn a library's ``PanicException``, which is not an `Exception`, into a `Panic`; as a decorator, too.

    Otherwise it would end a thread that works for everyone.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(str(error)) from error
