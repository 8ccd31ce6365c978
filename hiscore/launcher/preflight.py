"""Checks before a server starts; each failure says what to do about it."""

import ipaddress
import logging
import os
import re
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from hiscore.launcher.distribution import PYTHON, SCRIPTS, Distribution
from hiscore.launcher.errors import BadSetting, LaunchError
from hiscore.launcher.workspace import SHARED_MEMORY
from hiscore.settings import ServeSettings

log = logging.getLogger(__name__)

CHECK_EVERY_S = 5.0
SHM_BYTES = 64 * 2**20
"""Bytes of shared memory of a model's instance at the start, and the step in which it grows.

Several of the largest calls fit (4,000,000 ids are 16 MB), and three models fit a /dev/shm of 1 GiB.
"""
# 26.07, the first release after NVIDIA's security bulletins up to 5875. Older ones have known vulnerabilities;
# some of them let anyone who reaches a port run code.
FIRST_SAFE_VERSION = (2, 71)
# The nvidia-pytriton wheel does not say which release it contains.
WHEEL_VERSION = (2, 51)


def check_installation(settings: ServeSettings, distribution: Distribution) -> None:
    """Run the checks of what is installed, the cheap ones first; raises `LaunchError`."""
    check_exposure(settings, distribution)
    check_numpy(metadata.version("numpy"), distribution)
    check_python(SCRIPTS)
    check_libraries(distribution)


def check_exposure(settings: ServeSettings, distribution: Distribution) -> None:
    """Refuse to expose an old Triton to other machines."""
    if is_loopback(settings.bind_address) or settings.allow_known_cves:
        return
    version = triton_version(distribution)
    if version is None or version < FIRST_SAFE_VERSION:
        installed = "an unknown version" if version is None else "{}.{}".format(*version)
        safe = "{}.{}".format(*FIRST_SAFE_VERSION)
        raise BadSetting(
            f"BIND_ADDRESS {settings.bind_address} opens tritonserver ({installed}) to other machines, and "
            f"versions before {safe} (26.07) have known vulnerabilities: name a newer one in TRITONSERVER, keep "
            "to 127.0.0.1 behind a gateway, or set ALLOW_KNOWN_CVES=on where every caller is trusted"
        )


def is_loopback(address: str) -> bool:
    """Tell whether only this machine can reach an address. Any name but localhost may mean another."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return address == "localhost"


def triton_version(distribution: Distribution) -> tuple[int, int] | None:
    """Read a tritonserver's major and minor version from the file next to ``bin/``; None if there is none."""
    if distribution.is_wheel:
        return WHEEL_VERSION
    file = distribution.tritonserver.resolve().parents[1] / "TRITON_VERSION"
    match = re.match(r"(\d+)\.(\d+)\.", file.read_text()) if file.is_file() else None
    return (int(match.group(1)), int(match.group(2))) if match else None


def check_numpy(version: str, distribution: Distribution) -> None:
    """Refuse NumPy 2 for the wheel's Triton before a model does (`edge.start`)."""
    if distribution.is_wheel and int(version.split(".")[0]) >= 2:
        raise LaunchError(
            f"NumPy {version} is installed: the Python backend of nvidia-pytriton's Triton needs NumPy below 2, "
            "or it returns empty outputs. Run: pip install 'numpy<2'"
        )


def check_python(scripts: Path) -> None:
    """Check that ``python3``, from which the stub takes its packages, is next to the running interpreter."""
    if not (scripts / "python3").exists():
        raise LaunchError(f"{scripts} has no python3: run hiscore from a virtual environment")


def check_shared_memory(needed: int, free: int) -> None:
    """Check that /dev/shm has room for the Python backend's regions; both sizes in bytes."""
    if free < needed:
        raise LaunchError(
            f"{SHARED_MEMORY} has {free >> 20} MiB free, the models need {needed >> 20} MiB: make it larger "
            "(docker run --shm-size=1g)"
        )


def free_shared_memory() -> int:
    """Free bytes of /dev/shm; 0 if it does not exist."""
    if not SHARED_MEMORY.is_dir():
        return 0
    usage = os.statvfs(SHARED_MEMORY)
    return usage.f_bavail * usage.f_frsize


def check_libraries(distribution: Distribution) -> None:
    """Check that the dynamic loader finds what the server and the stub are linked to, libpython above all."""
    missing = distribution.missing_libraries()
    if missing:
        hint = (
            f" The stub embeds Python {PYTHON}: use a CPython built with --enable-shared, or install the "
            f"system's libpython{PYTHON} and add its directory to LD_LIBRARY_PATH."
            if any(name.startswith("libpython") for name in missing)
            else " Add their directories to LD_LIBRARY_PATH."
        )
        raise LaunchError(f"the dynamic loader does not find {', '.join(missing)}.{hint}")


class SharedMemoryWatch:
    """Logs once when the room in /dev/shm falls below `step` bytes, and again after it has recovered."""

    def __init__(
        self,
        step: int = SHM_BYTES,
        free: Callable[[], int] = free_shared_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._step, self._free, self._clock = step, free, clock
        self._low = False
        self._next = 0.0

    def check(self) -> None:
        """Look at /dev/shm, every few seconds at most."""
        if self._clock() < self._next:
            return
        self._next = self._clock() + CHECK_EVERY_S
        free = self._free()
        low = free < self._step
        if low and not self._low:
            log.error(
                "/dev/shm has %d MiB left: calls for which a model's region would have to grow fail. Make it "
                "larger (docker run --shm-size=2g)",
                free >> 20,
            )
        self._low = low
