"""Panics of the tokenizers library as ordinary exceptions."""

from collections.abc import Iterator
from contextlib import contextmanager


class Panic(Exception):
    """The tokenizers library gave up, for example because a regular expression backtracked too long."""


@contextmanager
def panics_raised() -> Iterator[None]:
    """Turn the library's ``PanicException``, which is not an `Exception`, into a `Panic`.

    Otherwise it would end the thread that encodes for everyone.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(str(error)) from error
