"""A launched batch, and its scores when the device has computed them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hiscore.arrays import Float32
from hiscore.errors import RequestError
from hiscore.scoring.packing.packing import Batch
from hiscore.scoring.results.readout_plan import ReadoutPlan, ScoreReader


@dataclass(frozen=True)
class Scores:
    """The answer to a request: scores, float32 [items, labels].

    `prompt_tokens` counts the query once, and all items; `cached_tokens` of them came from the prefix cache.
    """

    scores: Float32
    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True)
class BatchStats:
    """The cost of a batch: forwards, the tokens they computed, items scored, tokens from the cache."""

    forwards: int
    tokens: int
    items: int
    cached_tokens: int


class PendingScores:
    """A launched batch, which may not have finished."""

    def __init__(
        self, plans: Sequence[ReadoutPlan], batch: Batch, host: Tensor,
        shapes: list[tuple[list[int], int | None]], wait: Callable[[], None],
    ) -> None:  # fmt: skip
        """Keep what `result` needs.

        Args:
            host: float32 [n] on the host: the results one after another, row-major.
            shapes: For each result, the requests whose items are its rows, and its columns; None: one number for
                each label of each item.
            wait: Returns when the copy to `host` is done.
        """
        self._plans, self._batch = plans, batch
        self._host, self._shapes = host, shapes
        self._wait = wait

    def result(self) -> tuple[list[Scores | RequestError], BatchStats]:
        """Wait for the results and turn logits into scores; call it once."""
        # As much as possible before the wait: it costs nothing while the device computes.
        forwards, cached = self._batch.forwards, self._batch.cached_tokens
        tokens = sum(len(forward.input_ids) for forward in forwards)
        stats = BatchStats(len(forwards), tokens, sum(plan.items for plan in self._plans), sum(cached))
        readers = [_reader(plan) for plan in self._plans]
        results = self._results()
        self._wait()
        return [self._read(index, readers[index], found) for index, found in results], stats

    def _results(self) -> list[tuple[int, Float32]]:
        """Find each request's index, ascending, and results: float32 [items, columns] or [labels of all items]."""
        results: list[tuple[int, Float32]] = []
        values: Float32 = self._host.numpy()
        for members, width in self._shapes:
            for index in members:
                plan = self._plans[index]
                if width is None:
                    size = int(plan.label_counts.sum())
                    results.append((index, values[:size]))
                else:
                    size = plan.items * width
                    results.append((index, values[:size].reshape(plan.items, width)))
                values = values[size:]
        return sorted(results, key=lambda result: result[0])

    def _read(self, index: int, reader: ScoreReader | RequestError, result: Float32) -> Scores | RequestError:
        if isinstance(reader, RequestError):
            return reader
        try:
            scores = reader(result)
        except RequestError as error:
            return error
        return Scores(scores, len(self._plans[index].request.prompt.tokens), self._batch.cached_tokens[index])


def _reader(plan: ReadoutPlan) -> ScoreReader | RequestError:
    try:
        return plan.reader()
    except RequestError as error:
        return error
