"""This package's exceptions."""

import errno


class CheckpointError(Exception):
    """A checkpoint cannot be used. The message tells the operator why and what to do."""


class BadCheckpoint(CheckpointError):
    """MODEL names nothing that can be served: another try fails likewise."""


FULL = (errno.ENOSPC, errno.EDQUOT)


def is_full(error: BaseException | None) -> bool:
    """Tell whether an error comes of a disk, or a quota on it, that is full."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in FULL:
            return True
        error = error.__cause__ or error.__context__
    return False
