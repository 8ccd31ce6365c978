"""The measurements of perf.scoring.serving, one method each.

All but one draw new ids for every call, so that the prefix cache cannot help.
"""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from tritonclient.grpc import InferenceServerClient

from hiscore_client import ScoreClient
from perf.loadgen.analyzer_scoring import by_ids
from perf.loadgen.generator import Generator, Sample, poisson
from perf.loadgen.load_plan import Plan
from perf.loadgen.perf_analyzer import Analyzer
from perf.loadgen.score_check import Check, check_scores
from perf.loadgen.scorer_calls import Ids, Shape, draw
from perf.loadgen.text_calls import as_ids_message, draw_texts, text_message
from perf.loadgen.window import Meter, Point, Window, WrongScores
from perf.loadgen.window_validity import MIN_CALLS_FOR_P99

TEXT_CONCURRENCY = 32


@dataclass
class ServingSteps:
    """The measurements against one server."""

    plan: Plan
    url: str
    meter: Meter
    analyzer: Analyzer
    generator: Generator
    """Sends calls of the plan's shape."""
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(1))

    def calls(self, shape: Shape, count: int | None = None, one_query: bool = False) -> list[Ids]:
        """Draw new calls."""
        plan = self.plan
        return draw(self.rng, shape, count or plan.pool, plan.vocabulary, plan.labels, one_query)

    def check(self) -> Check:
        """Compare the scores of some calls with those of their items alone."""
        return check_scores(self.url, self.calls(self.plan.request, 6), self.plan.tolerance)

    def warm_up(self) -> Point:
        """Let the first calls compile kernels and fill pools."""
        return self._closed(self.generator, "warm-up", "warm-up", 16, pool="request")

    def alone(self, shape: Shape) -> list[Point]:
        """One call at a time: by our generator, by perf_analyzer, by the Python client."""
        title, count = f"alone {shape}", self.plan.alone
        with Generator(self.url, [call.message() for call in self.calls(shape)]) as generator:
            points = [self._closed(generator, "alone", title, 1, shape=shape)]
        runs: dict[str, Callable[[list[Ids]], list[Sample]]] = {
            "perf_analyzer": partial(by_analyzer, self.analyzer, title),
            "Python client": partial(by_client, self.url),
        }
        for tool, run in runs.items():
            window = Window(
                "alone", f"{title}, {tool}", shape, pool=f"{title}, {tool}", min_calls=MIN_CALLS_FOR_P99
            )
            points.append(self.meter.window(window, partial(run, self.calls(shape, count))))
        return points

    def open_loop(self, rate: float) -> Point:
        """Poisson arrivals, by our generator."""
        arrivals = poisson(self.rng, rate, self.plan.open_s)
        name = f"Poisson {rate:g}/s"
        window = Window(
            "open", name, self.plan.request, pool="request", offered=rate, min_calls=MIN_CALLS_FOR_P99
        )
        return self.meter.window(window, lambda: self.generator.open_loop(arrivals))

    def analyzer_open_loop(self, rate: float) -> Point:
        """Poisson arrivals, by perf_analyzer."""
        arrivals, calls = poisson(self.rng, rate, self.plan.open_s), self.calls(self.plan.request)
        name = f"Poisson {rate:g}/s, perf_analyzer"
        window = Window("open", name, self.plan.request, pool=name, offered=rate, min_calls=MIN_CALLS_FOR_P99)
        scoring = by_ids(calls)
        return self.meter.window(
            window, lambda: scoring.samples(self.analyzer.open_loop(name, scoring.target, arrivals))
        )

    def closed_loop(self, concurrency: int) -> Point:
        """A fixed number of calls in flight, by our generator."""
        return self._closed(self.generator, "closed", f"{concurrency} in flight", concurrency, pool="request")

    def repeated_query(self) -> list[Point]:
        """One query for all calls, new items: what the prefix cache is worth."""
        messages = [call.message() for call in self.calls(self.plan.request, one_query=True)]
        with Generator(self.url, messages) as generator:
            points = [
                self._closed(
                    generator, "cache", f"same query, {concurrency} in flight", concurrency, fresh=False
                )
                for concurrency in (1, TEXT_CONCURRENCY)
            ]
        if points[-1].cached_calls < 0.99 * points[-1].calls:
            raise WrongScores("calls with the same query were not served from the cache")
        return points

    def text(self) -> list[Point]:
        """By text through `score`, and by the ids of such texts through `scorer`, in the order A B B A."""
        plan = self.plan
        texts = draw_texts(self.rng, plan.request, 2 * plan.pool)
        client = InferenceServerClient(self.url)
        try:
            as_ids = [as_ids_message(client, *text, plan.labels) for text in texts[: plan.pool]]
        finally:
            client.close()
        by_text = [text_message(*text, plan.labels) for text in texts[plan.pool :]]
        with Generator(self.url, as_ids) as ids, Generator(self.url, by_text) as text:
            arms = [("ids of text", ids), ("text", text)]
            return [
                self._closed(generator, "text", f"{name}, {TEXT_CONCURRENCY} in flight", TEXT_CONCURRENCY)
                for name, generator in (*arms, *reversed(arms))
            ]

    def _closed(
        self, generator: Generator, group: str, name: str, concurrency: int,
        shape: Shape | None = None, pool: str = "", fresh: bool = True,
    ) -> Point:  # fmt: skip
        seconds = self.plan.closed_s
        window = Window(group, name, shape or self.plan.request, pool or name, seconds=seconds, fresh=fresh)
        return self.meter.window(window, lambda: generator.closed_loop(concurrency, seconds))


def by_analyzer(analyzer: Analyzer, name: str, calls: Sequence[Ids]) -> list[Sample]:
    """Send the calls one after another by perf_analyzer."""
    scoring = by_ids(calls)
    return scoring.samples(analyzer.closed_loop(name, scoring.target, 1, len(calls)))


def by_client(url: str, calls: Sequence[Ids]) -> list[Sample]:
    """Send the calls one after another by the Python client; building a call counts."""
    samples = []
    with ScoreClient(url) as client:
        client.score_ids(calls[0].query, [], calls[0].labels, apply_softmax=True)  # opens the connection
        for index, call in enumerate(calls):
            begin = time.perf_counter()
            result = client.score_ids(call.query, call.items, call.labels, apply_softmax=True)
            sample = Sample(index, begin, begin, time.perf_counter())
            sample.scores, sample.cached = result.scores, result.usage.cached_tokens
            samples.append(sample)
    return samples


def cost_of_text(points: Sequence[Point]) -> float:
    """Share of the throughput lost by sending text, from the windows of `ServingSteps.text`."""
    ids, text = (
        statistics.mean(point.rate for point in points if point.name.startswith(name))
        for name in ("ids of text", "text")
    )
    return 1 - text / ids
