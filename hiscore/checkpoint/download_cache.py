"""A cache of directories that are built once; a directory is in the cache complete or not at all."""

import fcntl
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hiscore.checkpoint.errors import CheckpointError


def cache_root() -> Path:
    """``$HISCORE_CACHE``, else ``hiscore`` in the user's cache directory."""
    if chosen := os.environ.get("HISCORE_CACHE"):
        return Path(chosen).expanduser().absolute()
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").absolute() / "hiscore"


def cached(name: str, build: Callable[[Path], None], *, progress: bool = True) -> Path:
    """Return a directory of the cache, which `build` fills if it does not exist.

    Processes that build the same directory wait for each other, with `progress` telling so on stderr; the
    first builds.

    Raises:
        CheckpointError: The cache cannot be written. What `build` raises passes through.
    """
    root = cache_root()
    target = root / name
    if target.is_dir():
        return target
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _lock(root / f".{name}.lock", progress):
            if not target.is_dir():
                _build(target, root / f".{name}.partial", build)
    except OSError as error:
        raise CheckpointError(
            f"cannot write '{target}': {error.strerror or error}. Set HISCORE_CACHE to a writable directory "
            "with 1 GB free"
        ) from error
    return target


def _build(target: Path, partial: Path, build: Callable[[Path], None]) -> None:
    # We hold the lock, so whatever is here was left by a builder that was killed.
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        build(partial)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _lock(path: Path, progress: bool) -> Iterator[None]:
    # Never removed: one process could then lock the old file while another locks a new one.
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if progress:
                print("Waiting for another process that prepares the same model ...", file=sys.stderr)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
