"""The versions of what is installed, for metrics and bug reports."""

import platform
from importlib import metadata

import hiscore
from hiscore.launcher.distribution import find_distribution
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.preflight import triton_version

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "triton")


def installed(package: str) -> str:
    """Look up the version of a package; "none" if there is none."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "none"


def tritonserver() -> str:
    """Look up the version of the tritonserver that would be started."""
    try:
        version = triton_version(find_distribution())
    except LaunchError:
        return "none"
    return "unknown" if version is None else "{}.{}".format(*version)


def build_info() -> dict[str, str]:
    """Labels of the metric ``hiscore_build_info``."""
    return {
        "version": hiscore.__version__,
        "triton": tritonserver(),
        "python": platform.python_version(),
        "torch": installed("torch"),
        "transformers": installed("transformers"),
    }
