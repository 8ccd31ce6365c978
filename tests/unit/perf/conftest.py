"""What the tests of perf share."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Use one thread: on a busy machine, tiny products cost more to distribute than to compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let figures be their numbers instead of pixels, which take most of a report's time (see test_charts)."""
    from perf.report import charts
    from perf.report.parts import Picture

    def draw(*args: object, **more: object) -> Picture:
        return Picture(b"\x89PNG" + repr((args, more)).encode(), "numbers instead of pixels")

    for kind in ("bars", "curves", "roofline", "stacked"):
        monkeypatch.setattr(charts, kind, draw)
