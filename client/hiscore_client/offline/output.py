"""The output directory: one run at a time, and files that are there whole or not at all."""

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
# Readers of data sets pass over names that begin with an underscore.
UNFINISHED = "_unfinished-"


def write_whole(path: Path, write: Callable[[Path], None]) -> None:
    """Have a file written under another name, then give it its own in one step; it survives a power failure."""
    unfinished = path.parent / f"{UNFINISHED}{uuid.uuid4().hex}-{path.name}"
    try:
        write(unfinished)
        for place in (unfinished, path.parent):
            handle = os.open(place, os.O_RDONLY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
            if place == unfinished:
                os.replace(unfinished, path)
    finally:
        unfinished.unlink(missing_ok=True)


@contextmanager
def hold(output: Path) -> Iterator[None]:
    """Make the directory and be the only run in it; what killed runs left unfinished is removed.

    The kernel gives the lock back when its holder dies, however that is.

    Raises:
        InvalidRequest: another run is in it.
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
            _sweep(output)
            yield
        finally:
            _sweep(output)


def _sweep(output: Path) -> None:
    for file in output.glob(f"{UNFINISHED}*"):
        file.unlink(missing_ok=True)


def begin(output: Path, manifest: Manifest) -> None:
    """Write the manifest into an empty directory, or check the one that is there.

    Raises:
        InvalidRequest: the directory belongs to another job, or to none.
    """
    path = output / MANIFEST
    if path.exists():
        check_resume(path.read_text(), manifest)
    elif any(file.name != LOCK for file in output.iterdir()):
        raise InvalidRequest(f"'{output}' is not empty, and is not the output of a job")
    else:
        write_whole(path, lambda file: _write_text(file, manifest.as_json()))


def finish(output: Path, summary: str) -> None:
    """Say that all rows are there, as Spark does; summary: JSON."""
    write_whole(output / SUCCESS, lambda file: _write_text(file, summary))


def _write_text(path: Path, text: str) -> None:
    path.write_text(text + "\n", encoding="utf-8")
