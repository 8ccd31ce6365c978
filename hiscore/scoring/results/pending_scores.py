"""A launched batch, and its scores when the device has computed them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from torch import Tensor

from hiscore.arrays import Float32
from hiscore.errors import RequestError
from hiscore.scoring.packing.packing import Batch
from hiscore.scoring.results.label_tokens import TokenValues
from hiscore.scoring.results.readout_plan import ReadoutPlan

T = TypeVar("T")


@dataclass(frozen=True)
class Scores:
    """The answer to a request: scores, float32 [items, labels].

    `prompt_tokens` counts the query once, and all items; `cached_tokens` of them came from the prefix cache. If
    places are read, `place_values` are float32 [places, labels]. `tokens` are there if asked for.
    """

    scores: Float32
    prompt_tokens: int
    cached_tokens: int
    place_values: Float32 | None = None
    tokens: TokenValues | None = None


@dataclass(frozen=True)
class BatchStats:
    """The cost of a batch: forwards, the tokens they computed, items scored, tokens from the cache."""

    forwards: int
    tokens: int
    items: int
    cached_tokens: int


class PendingScores:
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
        readers = [_attempt(plan.reader) for plan in self._plans]
        results = self._results()
        self._wait()
        answers: list[Scores | RequestError] = []
        for plan, reader, found, hit in zip(self._plans, readers, results, cached, strict=True):
            scores = reader if isinstance(reader, RequestError) else _attempt(reader, found)
            answers.append(
                scores if isinstance(scores, RequestError) else self._scores(plan, scores, found, hit)
            )
        return answers, stats

    def _results(self) -> list[Float32]:
        """Find each request's results: float32 [items and places, columns] or [labels of all items]."""
        results: dict[int, Float32] = {}
        values: Float32 = self._host.numpy()
        for members, width in self._shapes:
            for index in members:
                plan = self._plans[index]
                if width is None:
                    size = int(plan.label_counts.sum())
                    results[index] = values[:size]
                else:
                    size = plan.results * width
                    results[index] = values[:size].reshape(plan.results, width)
                values = values[size:]
        return [results[index] for index in range(len(self._plans))]

    @staticmethod
    def _scores(plan: ReadoutPlan, scores: Float32, found: Float32, cached: int) -> Scores:
        request, top, values = plan.request, plan.request.options.token_logprobs, None
        if plan.tokens is not None and top is not None:
            values = plan.tokens.values(found, top)
        places = None if request.places is None else scores[plan.items :]
        return Scores(scores[: plan.items], len(request.prompt.tokens), cached, places, values)


def _attempt(work: Callable[..., T], *given: Float32) -> T | RequestError:
    try:
        return work(*given)
    except RequestError as error:
        return error
