"""The `scorer` model: token ids in, scores out. The logic is in `hiscore.scorer`."""

import gc
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.errors import RequestError
from hiscore.options import parse_options
from hiscore.scorer import Pending, ScoreCall, Scorer, Scores, is_device_lost
from hiscore.serving.batch import Answer, as_request_error, read_all, required_tensor, send
from hiscore.serving.metrics import Counters
from hiscore.serving.pipeline import Finish, Pipeline
from hiscore.settings import ScorerSettings, from_model_config
from hiscore.validation import check_call, check_labels, one_row

log = logging.getLogger("hiscore.scorer.model")

COUNTERS = {
    "hiscore_forwards_total": "Prefill-only forwards of the scorer",
    "hiscore_batch_tokens_total": "Tokens computed by the scorer's forwards",
    "hiscore_items_total": "Items scored",
    "hiscore_cached_tokens_total": "Prompt tokens served from a cache",
    "hiscore_scorer_errors_total": "Calls that the scorer answered with an error",
}


class TritonPythonModel:
    """What Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        logging.basicConfig(level=logging.INFO, format="hiscore %(levelname)s %(name)s: %(message)s")
        self._settings = from_model_config(ScorerSettings, args["model_config"])
        on_cpu = args["model_instance_kind"] == "CPU"
        device = "cpu" if on_cpu else f"cuda:{args['model_instance_device_id']}"
        self._scorer = Scorer(
            Path(self._settings.checkpoint),
            device,
            self._settings.dtype,
            self._settings.max_batch_tokens,
            self._settings.query_cache_bytes,
        )
        self._counters = Counters(COUNTERS, {"model": args["model_name"], "version": args["model_version"]})
        self._pipeline = Pipeline()
        # What is loaded stays: the collector need not walk it again and again while requests wait.
        gc.collect()
        gc.freeze()

    def execute(self, requests: list[Any]) -> None:
        senders = [request.get_response_sender() for request in requests]
        jobs, errors = read_all(requests, self._read)
        for place, error in errors:
            send(senders[place], error)
        self._counters.add(hiscore_scorer_errors_total=len(errors))
        if jobs:
            to_answer = [senders[place] for place, _ in jobs]
            self._pipeline.submit(lambda: self._launch(to_answer, [call for _, call in jobs]))

    def finalize(self) -> None:
        self._pipeline.close()

    def _read(self, request: Any) -> ScoreCall:
        options = parse_options(request.parameters())
        ids, indices, labels = (
            one_row(name, required_tensor(request, name), np.int32)
            for name in ("input_ids", "delimiter_indices", "label_token_ids")
        )
        facts = self._scorer.facts
        return ScoreCall(
            call=check_call(ids, indices, self._settings, facts),
            # A copy: the shared memory behind it is gone once `execute` has returned.
            labels=check_labels(labels, self._settings, facts).copy(),
            options=options,
        )

    def _launch(self, senders: list[Any], calls: list[ScoreCall]) -> Finish:
        try:
            pending = self._scorer.submit(calls)
        except Exception as error:
            failure = error
            return lambda: self._finish(senders, lambda: _fail(failure))
        return lambda: self._finish(senders, lambda: self._result(pending))

    def _result(self, pending: Pending) -> list[Answer]:
        answers, stats = pending.result()
        self._counters.add(
            hiscore_forwards_total=stats.forwards,
            hiscore_batch_tokens_total=stats.tokens,
            hiscore_items_total=stats.items,
            hiscore_cached_tokens_total=stats.cached_tokens,
        )
        return [answer if isinstance(answer, RequestError) else _outputs(answer) for answer in answers]

    def _finish(self, senders: list[Any], compute: Callable[[], list[Answer]]) -> None:
        lost = False
        try:
            answers = compute()
        except Exception as error:
            answers = [as_request_error(error)] * len(senders)
            lost = is_device_lost(error)
        self._counters.add(hiscore_scorer_errors_total=sum(isinstance(a, RequestError) for a in answers))
        for sender, answer in zip(senders, answers, strict=True):
            send(sender, answer)
        if lost:
            # Every later call on this device would fail as well: let whoever watches the server start a new one.
            log.critical("the device is lost: this process ends")
            os._exit(1)


def _fail(error: Exception) -> list[Answer]:
    raise error


def _outputs(scores: Scores) -> Answer:
    usage = np.array([[scores.prompt_tokens, scores.cached_tokens]], np.int32)
    return {"scores": scores.scores[None], "usage": usage}
