"""Facts beside a number: hardware, versions, commit and command."""

import json
import os
import platform
import subprocess
import sys
import urllib.request
from collections.abc import Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "triton", "transformers", "tritonclient", "grpcio", "numpy")
ROOT = Path(__file__).resolve().parents[2]


def machine_facts(
    commit: str | None, gpu: str | None = None, driver: str | None = None, tritonserver: str | None = None
) -> dict[str, object]:
    """Describe the machine and the run, as every result file records it.

    Args:
        commit: Recorded unchanged; None: ask git.
        gpu: Name of the GPU measured on, None for a CPU.
        tritonserver: Version of the server measured, None where there was none.
    """
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shown(["python", *sys.orig_argv[1:]]),
        "commit": commit or _commit(),
        "gpu": gpu,
        "driver": driver,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "tritonserver": tritonserver,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def process_facts(commit: str | None) -> dict[str, object]:
    """`machine_facts` of a measurement in this process, on the GPU if there is one."""
    import torch

    return machine_facts(commit, torch.cuda.get_device_name() if torch.cuda.is_available() else None)


def shown(command: Sequence[str]) -> str:
    """A command as a result records it: absolute paths cut to their last part, as they say nothing elsewhere."""
    return " ".join(Path(part).name if os.path.isabs(part) else part for part in command)


def triton_version(http_url: str) -> str:
    """The version of a running server."""
    with urllib.request.urlopen(f"{http_url}/v2") as response:
        return str(json.load(response)["version"])


def _commit() -> str | None:
    """The checkout's commit, marked if files differ from it; None without git."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def _cpu() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), "unknown")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
