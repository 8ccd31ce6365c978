"""The locks: each pin installs on each CPython, and the lowest versions are those that pyproject.toml allows."""

import re
from importlib.metadata import distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[3]
PYTHONS = ("3.10", "3.11", "3.12")
# What builds a wheel, and what only a GPU runs.
NOT_INSTALLED = {"setuptools", "flashinfer-python"}


def lower_bounds(project: str) -> dict[str, str]:
    return dict(re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)', project))


def pins(lock: str) -> list[Requirement]:
    return [Requirement(line) for line in lock.splitlines() if line and not line.startswith("#")]


def refused(lock: list[Requirement], pythons: tuple[str, ...]) -> list[str]:
    """Pins that do not install on a CPython their line is for, by the Requires-Python of what is installed."""
    installed = {
        (canonicalize_name(found.name), found.version.partition("+")[0]): found.metadata["Requires-Python"]
        for found in distributions()
    }
    return [
        f"{pin} on {python}"
        for pin in lock
        for python in pythons
        if pin.marker is None or pin.marker.evaluate({"python_version": python})
        for wants in [installed.get((canonicalize_name(pin.name), str(pin.specifier)[2:]))]
        if wants and f"{python}.9" not in Requirement(f"python{wants}").specifier
    ]


def test_every_pin_installs_on_every_cpython() -> None:
    assert refused(pins((ROOT / "requirements.lock").read_text()), PYTHONS) == []
    assert refused(pins("hiscore-serving==0.1.0"), ("3.12", "3.13")) == ["hiscore-serving==0.1.0 on 3.13"]


def test_the_lowest_versions_are_the_lower_bounds() -> None:
    bounds: dict[str, str] = {}
    for project in (ROOT / "pyproject.toml", ROOT / "client/pyproject.toml"):
        bounds |= lower_bounds(project.read_text())
    lowest = pins((ROOT / "requirements-lowest.lock").read_text())
    assert {name: version for name, version in bounds.items() if name not in NOT_INSTALLED} == {
        pin.name: str(pin.specifier)[2:] for pin in lowest
    }
    assert lower_bounds('dependencies = ["a>=1.2,<3", "b-c[d]>=4"]') == {"a": "1.2", "b-c": "4"}
