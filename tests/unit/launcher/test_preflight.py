"""What is refused before a server starts: an exposed old Triton, too little memory."""

import logging
from pathlib import Path

import pytest

from hiscore.launcher import preflight
from hiscore.launcher.distribution import Distribution, find_distribution
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.preflight import (
    CHECK_EVERY_S,
    SharedMemoryWatch,
    check_exposure,
    is_loopback,
    triton_version,
)
from hiscore.settings import ServeSettings


def test_numpy_2_is_refused_for_the_wheel(tmp_path: Path) -> None:
    wheel = Distribution(tmp_path, tmp_path, tmp_path, (), is_wheel=True)
    preflight.check_numpy("1.26.4", wheel)
    with pytest.raises(LaunchError, match=r"NumPy 2\.1\.0 .*numpy<2"):
        preflight.check_numpy("2.1.0", wheel)
    # A model of another Triton finds out by itself.
    preflight.check_numpy("2.1.0", release(tmp_path, "2.72.0"))


def test_little_shared_memory_is_refused() -> None:
    preflight.check_shared_memory(needed=128 << 20, free=128 << 20)
    with pytest.raises(LaunchError, match=r"has 64 MiB free, the models need 128 MiB.*--shm-size"):
        preflight.check_shared_memory(needed=128 << 20, free=64 << 20)


def release(root: Path, version: str | None) -> Distribution:
    """A tritonserver laid out as in NVIDIA's images."""
    (root / "bin").mkdir()
    if version is not None:
        (root / "TRITON_VERSION").write_text(version)
    return Distribution(root / "bin/tritonserver", root, root, ())


@pytest.mark.parametrize("version", ["2.51.0", "2.70.0\n", "1.99.0", None, "dev"])
def test_an_old_or_unknown_triton_is_not_opened_to_others(tmp_path: Path, version: str | None) -> None:
    distribution = release(tmp_path, version)
    with pytest.raises(LaunchError, match=r"BIND_ADDRESS 0\.0\.0\.0 opens .* ALLOW_KNOWN_CVES=on"):
        check_exposure(ServeSettings(bind_address="0.0.0.0"), distribution)
    check_exposure(ServeSettings(bind_address="127.0.0.1"), distribution)
    check_exposure(ServeSettings(bind_address="0.0.0.0", allow_known_cves=True), distribution)


@pytest.mark.parametrize("version", ["2.71.0", "2.72.1\n", "3.0.0"])
def test_a_newer_one_is(tmp_path: Path, version: str) -> None:
    check_exposure(ServeSettings(bind_address="0.0.0.0"), release(tmp_path, version))


def test_the_wheels_is_old() -> None:
    assert triton_version(find_distribution()) == (2, 51)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
    ],
)
def test_what_only_this_machine_reaches(address: str, expected: bool) -> None:
    assert is_loopback(address) == expected


def test_it_is_told_once_each_time(caplog: pytest.LogCaptureFixture) -> None:
    now, said = 100.0, []
    free = 0

    watch = SharedMemoryWatch(64 << 20, lambda: free, lambda: now)
    for each in (64 << 20, (64 << 20) - 1, 0, 1 << 30, 10 << 20):
        free = each
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            watch.check()
        said.append([record.getMessage().partition(":")[0] for record in caplog.records])
        now += CHECK_EVERY_S
    assert said == [[], ["/dev/shm has 63 MiB left"], [], [], ["/dev/shm has 10 MiB left"]]


def test_it_looks_every_few_seconds_only() -> None:
    looks: list[int] = []
    now = 100.0
    watch = SharedMemoryWatch(1, lambda: looks.append(1) or 9, lambda: now)
    for _ in range(10):
        watch.check()
        now += CHECK_EVERY_S / 5
    assert len(looks) == 2
