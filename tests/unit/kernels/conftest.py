"""Kernels are compiled ahead where one has changed since they last compiled; else only `make test-all` does so."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest

CACHED = "hiscore/kernels"
# Without the Triton language none of these files can be imported.
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


def digest() -> str:
    """Hash every file that holds a kernel."""
    found = hashlib.sha256()
    for path in sorted((Path(__file__).parents[3] / "hiscore").rglob("*.py")):
        source = path.read_bytes()
        if b"@triton.jit" in source:
            found.update(source)
    return found.hexdigest()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave compiling to `make test-all`, unless a kernel has changed; in a fresh clone none has."""
    assert config.cache is not None
    now = digest()
    if config.cache.get(CACHED, None) is None:
        config.cache.set(CACHED, now)
    if config.cache.get(CACHED, now) == now:
        for item in items:
            if "compiled_kernels" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.exhaustive)
