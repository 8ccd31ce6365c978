"""What a number was measured on."""

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


def facts(gpu: str | None, driver: str | None, triton: str | None, commit: str | None) -> dict[str, object]:
    """Hardware, versions, commit, command and time; commit: where the checkout has no history to ask."""
    return {
        "time": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "command": shown(["python", *sys.orig_argv[1:]]),
        "commit": commit or _commit(),
        "gpu": gpu,
        "driver": driver,
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "tritonserver": triton,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def shown(command: Sequence[str]) -> str:
    """A command as a result keeps it: absolute paths by their last part, for they are no one else's."""
    return " ".join(Path(part).name if os.path.isabs(part) else part for part in command)


def triton_version(http_url: str) -> str:
    """Of a running server."""
    with urllib.request.urlopen(f"{http_url}/v2") as response:
        return str(json.load(response)["version"])


def _commit() -> str | None:
    """The checkout's commit, marked if files differ from it; None where git does not know."""
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
