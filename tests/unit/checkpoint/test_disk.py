"""A full disk while a model is prepared: an error that says so, and nothing half-done that is used later.

The disk is full where files may only grow to a size: the system refuses the write, as it does on a full disk.
"""

import errno
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hiscore.checkpoint import CheckpointError, download_cache
from hiscore.checkpoint.digests import check_digests, write_digests
from hiscore.checkpoint.gguf.convert import convert
from tests.unit.checkpoint.test_gguf import random_llama, write_gguf

FULL = 20_000  # bytes: the configs fit, the weights do not


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HISCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@contextmanager
def full_disk(size: int = FULL) -> Iterator[None]:
    """Python ignores the signal that comes with this limit, so that a write raises."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.fixture
def build(tmp_path: Path) -> Callable[[Path], None]:
    gguf = write_gguf(tmp_path / "model.gguf", random_llama(tied=True))
    assert gguf.stat().st_size > FULL

    def build(directory: Path) -> None:
        convert(gguf, directory, progress=False)
        write_digests(directory)

    return build


def test_a_conversion_on_a_full_disk_leaves_nothing(root: Path, build: Callable[[Path], None]) -> None:
    with full_disk(), pytest.raises(CheckpointError, match=r"cannot write .*Set HISCORE_CACHE"):
        download_cache.cached("model", build)
    assert sorted(os.listdir(root)) == [".model.lock"]
    # The control: with room it is built, whole.
    built = download_cache.cached("model", build)
    check_digests(built)
    assert (built / "model.safetensors").stat().st_size > FULL


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_a_disk_that_fails_is_explained_and_leaves_nothing(root: Path, code: int) -> None:
    def build(directory: Path) -> None:
        (directory / "half").touch()
        raise OSError(code, os.strerror(code))

    with pytest.raises(CheckpointError, match=f"{os.strerror(code)}.*Set HISCORE_CACHE"):
        download_cache.cached("model", build)
    assert sorted(os.listdir(root)) == [".model.lock"]
