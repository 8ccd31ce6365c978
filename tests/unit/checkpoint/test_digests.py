"""A model's files that have changed since they were written are detected before anything is loaded."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from hiscore.checkpoint import CheckpointError, check_digests
from hiscore.checkpoint.digests import SUMS, write_digests


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A directory that the launcher takes for a checkpoint; no weights are read."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(bytes(3_000_000))
    write_digests(tmp_path)
    return tmp_path


def flip(path: Path) -> None:
    """Change one bit in the middle; the size stays."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_control_what_has_not_changed_is_good(checkpoint: Path) -> None:
    check_digests(checkpoint)
    # Nothing of it but what is listed counts, and a directory without a list is not held to one.
    (checkpoint / "notes.txt").write_text("mine")
    check_digests(checkpoint)
    (checkpoint / SUMS).unlink()
    flip(checkpoint / "model.safetensors")
    check_digests(checkpoint)


def test_digests_are_of_files_and_not_of_their_own_list(checkpoint: Path) -> None:
    (checkpoint / "folder").mkdir()
    before = (checkpoint / SUMS).read_text()
    assert [line.split()[1] for line in before.splitlines()] == ["config.json", "model.safetensors"]
    write_digests(checkpoint)
    assert (checkpoint / SUMS).read_text() == before


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (
            lambda at: flip(at / "model.safetensors"),
            r"model\.safetensors' has the SHA-256 \w{64}, not \w{64}",
        ),
        (lambda at: os.truncate(at / "model.safetensors", 2_999_999), r"rs' has the SHA-256 .* cut short"),
        (lambda at: (at / "config.json").unlink(), r"config\.json' is missing, which SHA256SUMS"),
        (lambda at: (at / SUMS).write_text("trust me\n"), "'trust me': it is not sha256sum's"),
    ],
    ids=["tampered", "truncated", "missing", "no list"],
)
def test_what_is_wrong_is_named(spoil: Callable[[Path], object], says: str, checkpoint: Path) -> None:
    spoil(checkpoint)
    with pytest.raises(CheckpointError, match=says):
        check_digests(checkpoint)


def test_sha256sum_reads_it_and_writes_it(checkpoint: Path) -> None:
    subprocess.check_output(["sha256sum", "--check", "--strict", SUMS], cwd=checkpoint)
    for mode in ("--text", "--binary"):
        command = ["sha256sum", mode, "model.safetensors", "config.json"]
        (checkpoint / SUMS).write_bytes(subprocess.check_output(command, cwd=checkpoint))
        check_digests(checkpoint)
