"""The output directory: used by one run at a time, and each file appears in it complete or not at all."""

import errno
import fcntl
import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hiscore_client.errors import InvalidRequest
from hiscore_client.offline.manifest import Manifest, check_resume

MANIFEST = "_manifest.json"
SUCCESS = "_SUCCESS"
LOCK = "_lock"
# Tools that read data sets skip names that begin with an underscore.
UNFINISHED = "_unfinished-"


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Write a file under a temporary name, flush it to disk and rename it, so that it survives a power failure.

    Args:
        path: Final name.
    """
    unfinished = path.parent / f"{UNFINISHED}{uuid.uuid4().hex}-{path.name}"
    try:
        write(unfinished)
        for target in (unfinished, path.parent):
            handle = os.open(target, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            if target == unfinished:
                os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def exclusive(output: Path) -> Iterator[None]:
    """Create the directory and lock it; remove unfinished files of killed runs.

    The kernel releases the lock when its holder dies, even by SIGKILL.

    Raises:
        InvalidRequest: Another run has locked it.
    """
    output.mkdir(parents=True, exist_ok=True)
    with (output / LOCK).open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
                raise
            raise InvalidRequest(f"another run is writing to '{output}'") from None
        try:
            _remove_unfinished(output)
            yield
        finally:
            _remove_unfinished(output)


def _remove_unfinished(output: Path) -> None:
    for file in output.glob(f"{UNFINISHED}*"):
        file.unlink(missing_ok=True)


def begin(output: Path, manifest: Manifest) -> None:
    """Write the manifest into an empty directory, or check the existing one.

    Raises:
        InvalidRequest: The directory belongs to another job, or to none.
    """
    path = output / MANIFEST
    if path.exists():
        check_resume(path.read_text(), manifest)
    elif any(file.name != LOCK for file in output.iterdir()):
        raise InvalidRequest(f"'{output}' is not empty, and is not the output of a job")
    else:
        write_atomically(path, lambda file: _write_text(file, manifest.as_json()))


def mark_complete(output: Path, summary: str) -> None:
    """Write ``_SUCCESS``, as Spark does: all rows are there."""
    write_atomically(output / SUCCESS, lambda file: _write_text(file, summary))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")
