"""Directories of servers by process: one each, none of somebody else, none of a server that is gone."""

import os
import tempfile
from pathlib import Path

import pytest

from hiscore.server import run_directory as module
from hiscore.server.run_directory import PREFIX, VARIABLE, run_directory, started


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_all_models_of_a_server_have_the_same_one(temporary: Path) -> None:
    own = os.getpid()
    directory = run_directory(own)
    assert directory == run_directory(own) == temporary / f"{PREFIX}{own}-{started(own)}"
    assert directory.stat().st_mode & 0o777 == 0o700
    assert run_directory(os.getppid()) != directory


def test_whoever_started_the_server_may_name_one(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/named")
    assert run_directory(os.getpid()) == Path("/named")
    assert [*temporary.iterdir()] == []


def test_that_of_a_server_that_is_gone_is_removed(temporary: Path) -> None:
    own = os.getpid()
    # Another process had this one's number before; the second has none.
    gone = [temporary / f"{PREFIX}{own}-{started(own) - 1}", temporary / f"{PREFIX}4194305-7"]
    kept = [
        temporary / f"{PREFIX}{os.getppid()}-{started(os.getppid())}",
        temporary / f"{PREFIX}notes-of-mine",
    ]
    for each in (*gone, *kept):
        (each / "weights").mkdir(parents=True)
    run_directory(own)
    assert not any(each.exists() for each in gone)
    assert all(each.exists() for each in kept)


def test_one_of_somebody_else_is_not_used(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_directory(os.getpid())
    monkeypatch.setattr(module.os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(PermissionError, match="belongs to somebody else"):
        run_directory(os.getpid())
