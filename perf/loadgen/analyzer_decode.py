"""Requests to `decode` as perf_analyzer exports them, and the numbers that a serving benchmark reports."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from perf.loadgen.generator import Sample
from perf.loadgen.perf_analyzer import Exported, Target


@dataclass(frozen=True)
class Generation:
    """One generated sequence; times are seconds of one clock."""

    prompt: int
    """Index of the prompt."""
    intended: float
    sent: float
    arrivals: list[float] = field(default_factory=list)
    """When responses with tokens arrived."""
    tokens: list[list[int]] = field(default_factory=list)
    """The tokens of each of these responses."""
    finish_reason: str = ""

    @property
    def ids(self) -> list[int]:
        return [token for part in self.tokens for token in part]


@dataclass(frozen=True)
class Prompts:
    """Prompts to send, no two alike."""

    ids: Sequence[Sequence[int]]
    max_tokens: int

    @property
    def target(self) -> Target:
        entries = [{"input_ids": {"content": list(ids), "shape": [len(ids)]}} for ids in self.ids]
        parameters = (f"max_tokens:{self.max_tokens}:int", "ignore_eos:true:bool")
        return Target("decode", entries, parameters, streaming=True)

    def read(self, exported: Sequence[Exported]) -> list[Generation]:
        """The generated sequences, in the order of the export."""
        named = {tuple(ids): index for index, ids in enumerate(self.ids)}
        return [_read(named[tuple(each.request["request_inputs"]["input_ids"])], each) for each in exported]


def _read(prompt: int, exported: Exported) -> Generation:
    request = exported.request
    parsed = Generation(prompt, exported.intended, request["timestamp"] / 1e9)
    reason = ""
    for at, outputs in zip(request["response_timestamps"], request["response_outputs"], strict=True):
        # perf_analyzer exports a tensor of one element as that element and omits an empty one.
        value: Any = outputs.get("output_ids", [])
        ids = value if isinstance(value, list) else [value]
        reason = outputs.get("finish_reason") or reason
        if ids:
            parsed.arrivals.append(at / 1e9)
            parsed.tokens.append(ids)
    return Generation(parsed.prompt, parsed.intended, parsed.sent, parsed.arrivals, parsed.tokens, reason)


@dataclass(frozen=True)
class Times:
    """Statistics of some times, in milliseconds."""

    mean: float
    p50: float
    p90: float
    p95: float
    p99: float
    worst: float


@dataclass(frozen=True)
class Served:
    """Numbers of a window of sequences.

    Times are in milliseconds; time to first token and end-to-end time count from the intended send time. Rates
    count from the first send to the last token.
    """

    name: str
    streams: int
    failed: int
    seconds: float
    requests_per_s: float
    input_tokens_per_s: float
    output_tokens_per_s: float
    concurrency: float
    """Mean number of running sequences."""
    tokens_per_response: float
    end_to_end: Times
    ttft: Times
    tpot: Times
    """A sequence's mean time per token after its first response."""
    itl: Times
    """Times between a sequence's responses, each of which may hold several tokens."""
    late_p99: float
    """Lateness of the generator, p99 in ms."""


def summarise(name: str, generations: Sequence[Generation], prompt: int) -> Served:
    """Numbers of the sequences that were generated to their full length.

    Raises:
        RuntimeError: No sequence was.
    """
    good = [generation for generation in generations if generation.finish_reason == "length"]
    if not good:
        raise RuntimeError(f"'{name}': no sequence ended as it should")
    begin = min(generation.sent for generation in good)
    end = max(generation.arrivals[-1] for generation in good)
    taken = [generation.arrivals[-1] - generation.intended for generation in good]
    tokens = sum(len(generation.ids) for generation in good)
    gaps = np.concatenate([np.diff(generation.arrivals) for generation in good])
    responses = sum(len(generation.arrivals) for generation in good)
    lateness = [generation.sent - generation.intended for generation in generations]
    return Served(
        name=name,
        streams=len(generations),
        failed=len(generations) - len(good),
        seconds=end - begin,
        requests_per_s=len(good) / (end - begin),
        input_tokens_per_s=len(good) * prompt / (end - begin),
        output_tokens_per_s=tokens / (end - begin),
        concurrency=sum(taken) / (end - begin),
        tokens_per_response=tokens / responses,
        end_to_end=times(taken),
        ttft=times([generation.arrivals[0] - generation.intended for generation in good]),
        tpot=times([per_token(generation) for generation in good if len(generation.arrivals) > 1]),
        itl=times(gaps.tolist()),
        late_p99=1e3 * float(np.percentile(lateness, 99)),
    )


def per_token(generation: Generation) -> float:
    """Mean seconds per token after the first response."""
    tokens_after_first = len(generation.ids) - len(generation.tokens[0])
    return (generation.arrivals[-1] - generation.arrivals[0]) / tokens_after_first


def times(seconds: Sequence[float]) -> Times:
    """Statistics of some times in seconds.

    Raises:
        ValueError: There is no time.
    """
    if not len(seconds):
        raise ValueError("there is no time to take the mean of")
    values = 1e3 * np.array(seconds)
    p50, p90, p95, p99 = (float(np.percentile(values, q)) for q in (50, 90, 95, 99))
    return Times(statistics.fmean(values), p50, p90, p95, p99, float(values.max()))


def as_samples(generations: Sequence[Generation]) -> list[Sample]:
    """The sequences as samples for the checks of a window; the first token counts as the answer."""
    samples = []
    for generation in generations:
        error = "" if generation.finish_reason == "length" else f"ended by '{generation.finish_reason}'"
        done = generation.arrivals[0] if generation.arrivals else generation.sent
        samples.append(Sample(generation.prompt, generation.intended, generation.sent, done, error=error))
    return samples
