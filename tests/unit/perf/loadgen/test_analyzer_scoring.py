"""perf_analyzer's export of scoring calls: calls are told apart by their inputs."""

import numpy as np
import pytest

from perf.loadgen.analyzer_scoring import by_ids, by_text
from perf.loadgen.perf_analyzer import Exported
from perf.loadgen.scorer_calls import Shape, draw

S = 1_000_000_000


def test_calls_are_told_apart_by_ids_and_by_text() -> None:
    calls = draw(np.random.default_rng(0), Shape(4, 2, 3), 5, 100, (9, 7))
    texts = [(f"query {i}", ["a", "b"]) for i in range(5)]
    asked = [{"input_ids": calls[3].tensors()["input_ids"].tolist()}, {"query": "query 3"}]
    for scoring, inputs in zip((by_ids(calls), by_text(texts, (9, 7))), asked, strict=True):
        answer = {"scores": [0.25, 0.75, 0.5, 0.5], "usage": [10, 0]}
        request = {
            "timestamp": 2 * S,
            "request_inputs": inputs,
            "response_timestamps": [3 * S],
            "response_outputs": [answer],
        }
        (sample,) = scoring.samples([Exported(1.5, request)])
        assert (sample.message, sample.intended, sample.sent, sample.done) == (3, 1.5, 2.0, 3.0)
        assert sample.scores is not None
        assert sample.scores.shape == (2, 2)
        (lost,) = scoring.samples([Exported(1.5, {**request, "response_timestamps": []})])
        assert lost.error
    with pytest.raises(ValueError, match="have 1 queries"):
        by_text([texts[0]] * 2, (9, 7))
