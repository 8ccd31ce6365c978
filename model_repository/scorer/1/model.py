"""The `scorer` model: token ids in, scores out. The logic is in `hiscore.scorer`."""

import logging
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.errors import RequestError
from hiscore.options import parse_options
from hiscore.scorer import ScoreCall, Scorer
from hiscore.serving.batch import Outputs, required_tensor, run_batch
from hiscore.serving.metrics import Counters
from hiscore.settings import ScorerSettings, from_model_config
from hiscore.validation import check_call, check_labels, one_row

COUNTERS = {
    "hiscore_forwards_total": "Prefill-only forwards of the scorer",
    "hiscore_batch_tokens_total": "Tokens computed by the scorer's forwards",
    "hiscore_items_total": "Items scored",
    "hiscore_cached_tokens_total": "Prompt tokens served from a cache",
    "hiscore_scorer_rejects_total": "Calls that the scorer answered with an error",
}


class TritonPythonModel:
    """What Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        logging.basicConfig(level=logging.INFO, format="hiscore %(levelname)s %(name)s: %(message)s")
        self._settings = from_model_config(ScorerSettings, args["model_config"])
        device = "cpu" if args["model_instance_kind"] == "CPU" else f"cuda:{args['model_instance_device_id']}"
        self._scorer = Scorer(
            Path(self._settings.checkpoint),
            device,
            self._settings.dtype,
            self._settings.max_batch_tokens,
            self._settings.query_cache_bytes,
        )
        self._counters = Counters(COUNTERS, {"model": args["model_name"], "version": args["model_version"]})

    def execute(self, requests: list[Any]) -> list[Any]:
        return run_batch(requests, self._read, self._compute)

    def _read(self, request: Any) -> ScoreCall:
        options = parse_options(request.parameters())
        ids, indices, labels = (
            one_row(name, required_tensor(request, name), np.int32)
            for name in ("input_ids", "delimiter_indices", "label_token_ids")
        )
        facts = self._scorer.facts
        return ScoreCall(
            call=check_call(ids, indices, self._settings, facts),
            labels=check_labels(labels, self._settings, facts),
            options=options,
        )

    def _compute(self, calls: list[ScoreCall]) -> list[Outputs | RequestError]:
        answers, stats = self._scorer.score(calls)
        self._counters.add(
            hiscore_forwards_total=stats.forwards,
            hiscore_batch_tokens_total=stats.tokens,
            hiscore_items_total=stats.items,
            hiscore_cached_tokens_total=stats.cached_tokens,
        )
        return [
            answer
            if isinstance(answer, RequestError)
            else {
                "scores": answer.scores[None],
                "usage": np.array([[answer.prompt_tokens, answer.cached_tokens]], np.int32),
            }
            for answer in answers
        ]
