"""What is refused before a server starts: an exposed old Triton, too little memory."""

from pathlib import Path

import pytest

from hiscore.launcher import preflight
from hiscore.launcher.distribution import Distribution, find_distribution
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.preflight import check_exposure, is_loopback, triton_version
from hiscore.settings import ServeSettings


def test_numpy_2_is_refused() -> None:
    preflight.check_numpy("1.26.4")
    with pytest.raises(LaunchError, match=r"NumPy 2\.1\.0 .*numpy<2"):
        preflight.check_numpy("2.1.0")


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
    with pytest.raises(LaunchError, match=r"BIND_ADDRESS 0\.0\.0\.0 opens .* ALLOW_KNOWN_CVES=1"):
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
