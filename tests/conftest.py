"""Settings that must precede any import of a kernel, and small checkpoints with their truth."""

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

# Parallel workers share the cores; more threads than cores would slow all of them down.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ["OMP_NUM_THREADS"] = "1"
# Elsewhere, too, whatever else runs: a thread that spins until OpenMP needs it keeps a core from those that work.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from hypothesis import HealthCheck, settings

SLOW_ROWS = 2
"""Rows of a slow matrix that make test tries."""

if not torch.cuda.is_available():
    # Without a GPU, kernels run in Triton's interpreter; it is chosen when a kernel is defined.
    os.environ["TRITON_INTERPRET"] = "1"

# A shell without job control starts background commands with SIGINT ignored. Processes that tests start and
# interrupt would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Tests share their machine: how long an example takes says nothing about the code. In CI the same examples are
# tried each time, so that what fails there can be reproduced here.
settings.register_profile(
    "shared machine",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("shared machine")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave the later rows of slow matrices to make test-all, but for those of families (tests/README.md)."""
    rows: Counter[str] = Counter()
    for item in items:
        given = getattr(item, "callspec", None)
        if given and item.get_closest_marker("slow") and "family" not in given.params:
            name = item.nodeid.partition("[")[0]
            rows[name] += 1
            if rows[name] > SLOW_ROWS:
                item.add_marker(pytest.mark.exhaustive)


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory):
    """Tiny checkpoints by (family, labels) with their truth, made on first use."""
    from tests.support.tiny_models import make
    from tests.support.truth import Truth

    made: dict[tuple[str, int | None], tuple[Path, Truth]] = {}

    def get(family: str, labels: int | None = None) -> tuple[Path, Truth]:
        if (family, labels) not in made:
            directory = make(family, tmp_path_factory.mktemp(family), labels)
            made[family, labels] = directory, Truth(directory)
        return made[family, labels]

    return get
