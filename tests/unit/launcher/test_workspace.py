"""A private directory per server, and what killed servers leave behind."""

import os
import tempfile
from pathlib import Path

import pytest

from hiscore.launcher.errors import LaunchError
from hiscore.launcher.workspace import SHARED_MEMORY, Workspace, sweep


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_workspace_is_private_and_removed_with_its_shared_memory() -> None:
    workspace = Workspace()
    region = SHARED_MEMORY / f"{workspace.name}_region"
    region.touch()
    assert workspace.path.stat().st_mode & 0o777 == 0o700
    workspace.remove()
    assert not workspace.path.exists()
    assert not region.exists()


def test_a_sweep_spares_the_living_and_removes_the_dead() -> None:
    workspace = Workspace()
    region = SHARED_MEMORY / f"{workspace.name}_region"
    region.touch()
    sweep()
    assert workspace.path.exists()
    assert region.exists()
    # What the end of the last process that holds the lock does.
    os.close(workspace.lock)
    sweep()
    assert not workspace.path.exists()
    assert not region.exists()


def test_a_temporary_directory_with_a_space_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = tmp_path / "a b"
    spaced.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spaced))
    with pytest.raises(LaunchError, match="set TMPDIR"):
        Workspace()
    assert list(spaced.iterdir()) == []
