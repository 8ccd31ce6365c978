"""Several generators as one: a single process could not keep several devices busy."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

from perf.loadgen.generator import Generator, Sample


class Generators:
    """Processes that share a set of messages: no message is ever sent by two of them."""

    def __init__(self, url: str, messages: Sequence[bytes], processes: int) -> None:
        """No process runs yet.

        Args:
            messages: Serialised calls; process p sends every `processes`-th one, from message p on.
        """
        self._parts = [Generator(url, messages[part::processes]) for part in range(processes)]
        self._stack = ExitStack()

    def __enter__(self) -> "Generators":
        for part in self._parts:
            self._stack.enter_context(part)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def closed_loop(self, concurrency: int, seconds: float) -> list[Sample]:
        """Keep `concurrency` calls of each process in flight for so many seconds."""
        with ThreadPoolExecutor(len(self._parts)) as threads:
            found = list(
                threads.map(lambda generator: generator.closed_loop(concurrency, seconds), self._parts)
            )
        return [
            replace(sample, message=part + len(self._parts) * sample.message)
            for part, samples in enumerate(found)
            for sample in samples
        ]
