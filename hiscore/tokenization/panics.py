"""The tokenizers library's way to give up, made an exception like others."""

from collections.abc import Iterator
from contextlib import contextmanager


class Panic(Exception):
    """The tokenizers library has given up, on a text that makes its regular expressions search too long, say."""


@contextmanager
def panics_raised() -> Iterator[None]:
    """Turn a panic of the library into an exception.

    What it raises is a ``PanicException``, which is no `Exception`: it would end a thread that serves everyone.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise Panic(str(error)) from error
