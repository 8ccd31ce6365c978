"""Several generators send every message, none of them twice at once, and number their answers as one would."""

from collections.abc import Sequence
from types import TracebackType

import pytest

from perf.loadgen import generators
from perf.loadgen.generator import Sample


class Echo:
    """Stands in for a generator: every message is answered once, with itself."""

    def __init__(self, url: str, messages: Sequence[bytes]) -> None:
        self._messages = messages

    def __enter__(self) -> "Echo":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    def closed_loop(self, concurrency: int, seconds: float) -> list[Sample]:
        return [Sample(index, 0.0, answer=message) for index, message in enumerate(self._messages)]


@pytest.mark.parametrize(("count", "processes"), [(8, 2), (7, 3), (4, 1)])
def test_answers_belong_to_the_messages_of_all(
    count: int, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generators, "Generator", Echo)
    messages = [bytes([index]) for index in range(count)]
    with generators.Generators("", messages, processes) as together:
        samples = together.closed_loop(1, 0.0)
    assert sorted(sample.message for sample in samples) == list(range(count))
    assert all(sample.answer == messages[sample.message] for sample in samples)
