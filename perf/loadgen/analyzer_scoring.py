"""Calls of `scorer` and of `score` as perf_analyzer sends them, and their answers out of its export."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perf.loadgen.generator import Sample
from perf.loadgen.perf_analyzer import Exported, Target
from perf.loadgen.scorer_calls import Ids

SOFTMAX = "apply_softmax:true:bool"


@dataclass(frozen=True)
class Scoring:
    """Calls to send. named: which of them a request was, by the input that tells them apart."""

    target: Target
    labels: int
    told_by: str
    named: Mapping[tuple[Any, ...], int]

    def samples(self, exported: Sequence[Exported]) -> list[Sample]:
        """What came back, in the order in which it was exported."""
        found = []
        for intended, request in exported:
            message = self.named[_flat(request["request_inputs"][self.told_by])]
            sample = Sample(message, intended, request["timestamp"] / 1e9)
            if request["response_timestamps"]:
                outputs = request["response_outputs"][-1]
                sample.done = request["response_timestamps"][-1] / 1e9
                sample.scores = np.array(outputs["scores"], np.float32).reshape(-1, self.labels)
                sample.cached = outputs["usage"][1]
            else:
                sample.error = "no answer"
            found.append(sample)
        return found


def by_ids(calls: Sequence[Ids]) -> Scoring:
    """Through `scorer`."""
    named = {tuple(call.tensors()["input_ids"].tolist()): index for index, call in enumerate(calls)}
    target = Target("scorer", [call.entry() for call in calls], (SOFTMAX,))
    return Scoring(target, len(calls[0].labels), "input_ids", named)


def by_text(texts: Sequence[tuple[str, Sequence[str]]], labels: Sequence[int]) -> Scoring:
    """Through `score`: a query and its items each; queries tell calls apart.

    Raises:
        ValueError: two calls have one query.
    """
    named = {(query,): index for index, (query, _) in enumerate(texts)}
    if len(named) < len(texts):
        raise ValueError(f"{len(texts)} calls have {len(named)} queries")
    entries = []
    for query, items in texts:
        tensors: dict[str, list[Any]] = {
            "query": [query],
            "items": list(items),
            "label_token_ids": list(labels),
        }
        entries.append(
            {name: {"content": values, "shape": [len(values)]} for name, values in tensors.items()}
        )
    return Scoring(Target("score", entries, (SOFTMAX,)), len(labels), "query", named)


def _flat(value: Any) -> tuple[Any, ...]:
    """perf_analyzer writes a tensor of one element as that element."""
    return tuple(value) if isinstance(value, list) else (value,)
