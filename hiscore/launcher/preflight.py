"""What must hold before a server can start; each failure says what to do about it."""

import os
from importlib import metadata
from pathlib import Path

from hiscore.launcher.distribution import PYTHON, SCRIPTS, Distribution
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.workspace import SHARED_MEMORY


def check_numpy(version: str) -> None:
    """Refuse a NumPy under which the stub answers with empty tensors, without an error."""
    if int(version.split(".")[0]) >= 2:
        raise LaunchError(
            f"NumPy {version} is installed: Triton's Python stub needs NumPy below 2, "
            "or it returns empty outputs. Run: pip install 'numpy<2'"
        )


def check_libraries(distribution: Distribution) -> None:
    """Check that the dynamic loader finds what the server and the stub link, libpython above all."""
    missing = distribution.missing_libraries()
    if missing:
        hint = (
            f" The stub embeds Python {PYTHON}: use a CPython built with --enable-shared, or install the "
            f"system's libpython{PYTHON} and add its directory to LD_LIBRARY_PATH."
            if any(name.startswith("libpython") for name in missing)
            else " Add their directories to LD_LIBRARY_PATH."
        )
        raise LaunchError(f"the dynamic loader does not find {', '.join(missing)}.{hint}")


def check_shared_memory(needed: int, free: int) -> None:
    """Check that /dev/shm holds the Python backend's regions (both in bytes)."""
    if free < needed:
        raise LaunchError(
            f"{SHARED_MEMORY} has {free >> 20} MiB free, the models need {needed >> 20} MiB: make it larger "
            "(docker run --shm-size=1g), or lower SHM_BYTES"
        )


def free_shared_memory() -> int:
    """Free bytes of /dev/shm, or none where there is no such place."""
    if not SHARED_MEMORY.is_dir():
        return 0
    usage = os.statvfs(SHARED_MEMORY)
    return usage.f_bavail * usage.f_frsize


def check_python(scripts: Path) -> None:
    """Check that the running interpreter's directory has the ``python3`` from which the stub takes packages."""
    if not (scripts / "python3").exists():
        raise LaunchError(f"{scripts} has no python3: run hiscore from a virtual environment")


def check_all(distribution: Distribution, shared_memory: int) -> None:
    """Every check, the cheap ones first; `shared_memory` in bytes.

    Raises:
        LaunchError: one fails.
    """
    check_numpy(metadata.version("numpy"))
    check_python(SCRIPTS)
    check_shared_memory(shared_memory, free_shared_memory())
    check_libraries(distribution)
