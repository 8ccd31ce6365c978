"""A launched batch, and its scores when the device has computed them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from hiscore.arrays import Float32
from hiscore.errors import RequestError
from hiscore.scoring.packing.packing import Batch
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.head_results import own_counts
from hiscore.scoring.results.score_reader import ScoreReader, reader_of


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
        self, requests: Sequence[ScoreRequest], batch: Batch, host: Tensor,
        shapes: list[tuple[list[int], int | None]], wait: Callable[[], None], is_classifier: bool,
    ) -> None:  # fmt: skip
        """Keep what `result` needs.

        Args:
            host: float32 [n] on the host: the results one after another, row-major.
            shapes: For each result, the requests whose items are its rows, and its columns; None: one number for
                each label of each item.
            wait: Returns when the copy to `host` is done.
        """
        self._requests, self._batch = requests, batch
        self._host, self._shapes = host, shapes
        self._wait = wait
        self._is_classifier = is_classifier

    def result(self) -> tuple[list[Scores | RequestError], BatchStats]:
        """Wait for the results and turn logits into scores; call it once."""
        # As much as possible before the wait: it costs nothing while the device computes.
        items = [len(request.prompt.item_lengths) for request in self._requests]
        forwards, cached = self._batch.forwards, self._batch.cached_tokens
        tokens = sum(len(forward.input_ids) for forward in forwards)
        stats = BatchStats(len(forwards), tokens, sum(items), sum(cached))
        readers = [_reader(request, self._is_classifier) for request in self._requests]
        results = self._results(items)
        self._wait()
        return [self._read(index, readers[index], found) for index, found in results], stats

    def _results(self, items: Sequence[int]) -> list[tuple[int, Float32]]:
        """Find each request's index, ascending, and results: float32 [items, columns] or [labels of all items]."""
        results: list[tuple[int, Float32]] = []
        values: Float32 = self._host.numpy()
        for members, width in self._shapes:
            for index in members:
                if width is None:
                    size = int(own_counts(self._requests[index]).sum())
                    results.append((index, values[:size]))
                else:
                    size = items[index] * width
                    results.append((index, values[:size].reshape(items[index], width)))
                values = values[size:]
        return sorted(results, key=lambda result: result[0])

    def _read(self, index: int, reader: ScoreReader | RequestError, result: Float32) -> Scores | RequestError:
        if isinstance(reader, RequestError):
            return reader
        try:
            scores = reader(result)
        except RequestError as error:
            return error
        return Scores(scores, len(self._requests[index].prompt.tokens), self._batch.cached_tokens[index])


def _reader(request: ScoreRequest, is_classifier: bool) -> ScoreReader | RequestError:
    try:
        return reader_of(request, is_classifier)
    except RequestError as error:
        return error
