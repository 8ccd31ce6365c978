"""``make doctor``: what a bug report needs. Nothing is started, and nothing secret is printed.

usage: python -m hiscore.launcher.doctor
"""

import os
import platform
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hiscore
from hiscore.launcher.device_choice import no_gpu
from hiscore.launcher.distribution import find_distribution
from hiscore.launcher.early_checks import PORTS
from hiscore.launcher.ports import is_free
from hiscore.launcher.preflight import free_shared_memory
from hiscore.launcher.versions import PACKAGES, installed, tritonserver
from hiscore.server.host import available_host_bytes, usable_cores
from hiscore.settings import ServeSettings

GPU_QUERY = "--query-gpu=name,driver_version,memory.total,memory.used,compute_cap"
LIMITS = {"open files": "RLIMIT_NOFILE", "locked memory": "RLIMIT_MEMLOCK", "data": "RLIMIT_DATA"}


def versions() -> Iterator[str]:
    """List what is installed."""
    yield f"hiscore {hiscore.__version__}, tritonserver {tritonserver()}, Python {platform.python_version()}"
    yield ", ".join(f"{package} {installed(package)}" for package in PACKAGES)
    yield f"{platform.platform()}, {' '.join(platform.libc_ver())}"
    missing = find_distribution().missing_libraries()
    yield f"libraries that the loader does not find: {', '.join(missing) or 'none'}"


def devices() -> Iterator[str]:
    """GPUs and processors."""
    yield f"GPU: {no_gpu() or 'usable, as far as can be told without torch'}"
    if program := shutil.which("nvidia-smi"):
        command = [program, GPU_QUERY, "--format=csv,noheader"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        yield from (done.stdout or done.stderr).strip().splitlines()
    yield f"processors: {os.cpu_count()}, of which {usable_cores()} may be used"


def memory() -> Iterator[str]:
    """Memory and limits."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    yield f"memory: {_mib(total)}, of which {_mib(available_host_bytes())} may be taken, control groups considered"
    shared = os.statvfs("/dev/shm")
    yield f"/dev/shm: {_mib(shared.f_blocks * shared.f_frsize)}, of which {_mib(free_shared_memory())} are free"
    for name, limit in LIMITS.items():
        soft, hard = (
            "unlimited" if value == resource.RLIM_INFINITY else str(value)
            for value in resource.getrlimit(getattr(resource, limit))
        )
        yield f"limit of {name}: {soft} (at most {hard})"
    directory = Path(tempfile.gettempdir())
    yield f"{directory}: {_mib(shutil.disk_usage(directory).free)} free"


def settings() -> Iterator[str]:
    """Settings that are set, and the ports that they name."""
    chosen = ServeSettings()
    given = sorted(name for name in chosen.model_fields_set)
    yield "settings: " + (
        ", ".join(f"{name.upper()}={getattr(chosen, name)}" for name in given) or "defaults"
    )
    for name in PORTS:
        port: int | None = getattr(chosen, name)
        if port:
            yield f"{name.upper()} {port}: {'free' if is_free(chosen.bind_address, port) else 'in use'}"


def _mib(size: int) -> str:
    return f"{size >> 20} MiB"


def report(sections: tuple[Callable[[], Iterator[str]], ...] = (versions, devices, memory, settings)) -> str:
    """Join all sections; a section that fails says why, and the others are there all the same."""
    lines: list[str] = []
    for section in sections:
        lines.append(f"## {section.__name__}")
        try:
            lines.extend(section())
        except Exception as error:
            lines.append(f"cannot be told: {type(error).__name__}: {error}")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(report())
