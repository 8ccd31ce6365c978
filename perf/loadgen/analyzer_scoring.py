"""Calls to `scorer` and `score` as perf_analyzer sends them, and their answers read from its export."""

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
    """Calls to send, and how to recognise them in the export."""

    target: Target
    labels: int
    """Number of labels of each call."""
    key_input: str
    """The input whose values identify a call."""
    index_of: Mapping[tuple[Any, ...], int]
    """A call's index by these values."""

    def samples(self, exported: Sequence[Exported]) -> list[Sample]:
        """The calls with their answers, in the order of the export."""
        answered = []
        for intended, request in exported:
            message = self.index_of[_flat(request["request_inputs"][self.key_input])]
            sample = Sample(message, intended, request["timestamp"] / 1e9)
            if request["response_timestamps"]:
                outputs = request["response_outputs"][-1]
                sample.done = request["response_timestamps"][-1] / 1e9
                sample.scores = np.array(outputs["scores"], np.float32).reshape(-1, self.labels)
                sample.cached = outputs["usage"][1]
            else:
                sample.error = "no answer"
            answered.append(sample)
        return answered


def by_ids(calls: Sequence[Ids]) -> Scoring:
    """Calls by token ids, to `scorer`."""
    named = {tuple(call.tensors()["input_ids"].tolist()): index for index, call in enumerate(calls)}
    target = Target("scorer", [call.entry() for call in calls], (SOFTMAX,))
    return Scoring(target, len(calls[0].labels), "input_ids", named)


def by_text(texts: Sequence[tuple[str, Sequence[str]]], labels: Sequence[int]) -> Scoring:
    """Calls by text, to `score`.

    Args:
        texts: A query and its items for each call.

    Raises:
        ValueError: Two calls have the same query, which is what identifies them.
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
    """The values of a tensor; perf_analyzer exports a tensor of one element as that element."""
    return tuple(value) if isinstance(value, list) else (value,)
