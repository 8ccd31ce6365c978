"""The `scorer` model: token ids in, scores out. The logic is in `hiscore.scoring.scorer`."""

import gc
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.errors import RequestError
from hiscore.logs import configure_model
from hiscore.parameters import one_row
from hiscore.scoring.layout import unpack
from hiscore.scoring.options import parse_options
from hiscore.scoring.parts import split_call
from hiscore.scoring.request import ScoreRequest
from hiscore.scoring.scorer import Pending, Scorer, Scores
from hiscore.scoring.validation import check_labels, check_prompt
from hiscore.serving.batcher import Engine
from hiscore.serving.device_loss import end_if_device_is_lost
from hiscore.serving.metrics import Counters, TotalsFeed
from hiscore.serving.triton_io import Answer, parameters, request_id, required_tensor, send, serve
from hiscore.settings import CANARY_ID, ScorerSettings, from_model_config

log = logging.getLogger("hiscore.scoring.scorer.model")

COUNTERS = {
    "hiscore_batches_total": "Batches that the scorer formed",
    "hiscore_forwards_total": "Prefill-only forwards of the scorer",
    "hiscore_batch_tokens_total": "Tokens computed by the scorer's forwards",
    "hiscore_items_total": "Items scored",
    "hiscore_cached_tokens_total": "Prompt tokens served from a cache",
}


class TritonPythonModel:
    """What Triton's Python backend loads."""

    def initialize(self, args: dict[str, str]) -> None:
        self.settings = settings = from_model_config(ScorerSettings, args["model_config"])
        configure_model(settings.log_format, args["model_name"])
        on_cpu = args["model_instance_kind"] == "CPU"
        self.scorer = Scorer(
            Path(settings.checkpoint),
            "cpu" if on_cpu else f"cuda:{args['model_instance_device_id']}",
            settings.dtype,
            settings.max_batch_tokens,
            settings.query_cache_bytes,
        )
        labels = {"model": args["model_name"], "version": args["model_version"]}
        # Instances of several GPUs are told apart by their device.
        self.counters = Counters(COUNTERS, labels | {"device": str(self.scorer.device)})
        self.feed = TotalsFeed(labels | {"device": str(self.scorer.device)}, lambda: self.engine.totals)
        self.engine: Engine[ScoreRequest] = Engine(
            launch=lambda calls: LaunchedBatch(calls, self.scorer.submit(calls), self.counters, self.feed),
            answer=lambda ticket, answer: send(ticket.reply_to, answer),
            failed=end_if_device_is_lost,
            abandoned=lambda ticket: ticket.reply_to.sender.is_cancelled(),
            # An empty item has no token, but is a row to read all the same.
            cost=lambda job: len(job.prompt.tokens) + int((job.prompt.item_lengths == 0).sum()),
            budget=settings.max_batch_tokens,
            max_queue=settings.max_queue,
            inline=not on_cpu,
            max_cost=settings.max_queue_tokens,
            split=self.split,
            join=joined,
        )
        # What is loaded stays: the collector need not walk it again and again while calls wait.
        gc.collect()
        gc.freeze()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        return serve(requests, self.read, self.engine, self.settings.queue_timeout_s)

    def finalize(self) -> None:
        self.engine.close()
        gc.unfreeze()  # or libraries report at exit as leaked what was only set aside

    def split(self, job: ScoreRequest) -> list[ScoreRequest]:
        parts = split_call(job.prompt, self.settings.max_batch_tokens)
        return [job] if len(parts) == 1 else [replace(job, prompt=part) for part in parts]

    def read(self, request: Any) -> ScoreRequest:
        options = parse_options(parameters(request))
        ids, indices, labels = (
            one_row(name, required_tensor(request, name), np.int32)
            for name in ("input_ids", "delimiter_indices", "label_token_ids")
        )
        prompt = unpack(ids, indices)
        check_prompt(prompt, self.settings, self.scorer.facts)
        labels = check_labels(labels, self.settings, self.scorer.facts).copy()
        return ScoreRequest(prompt, labels, options, is_canary=request_id(request) == CANARY_ID)


class LaunchedBatch:
    """A batch on its way, and what it counts once its callers have their answers."""

    def __init__(
        self, calls: Sequence[ScoreRequest], pending: Pending, counters: Counters, feed: TotalsFeed
    ) -> None:
        self.is_canary = all(call.is_canary for call in calls)
        self.pending, self.counters, self.feed = pending, counters, feed

    def finish(self) -> list[Answer]:
        answers, self.stats = self.pending.result()
        return [answer if isinstance(answer, RequestError) else outputs(answer) for answer in answers]

    def count(self) -> None:
        self.feed.update()
        if self.is_canary:
            return
        self.counters.add(
            hiscore_batches_total=1,
            hiscore_forwards_total=self.stats.forwards,
            hiscore_batch_tokens_total=self.stats.tokens,
            hiscore_items_total=self.stats.items,
            hiscore_cached_tokens_total=self.stats.cached_tokens,
        )


def outputs(scores: Scores) -> Answer:
    """The response's tensors, with Triton's leading batch dimension."""
    usage = np.array([[scores.prompt_tokens, scores.cached_tokens]], np.int32)
    return {"scores": scores.scores[None], "usage": usage}


def joined(job: ScoreRequest, parts: Sequence[dict[str, Any]]) -> Answer:
    """A call's answer from those of its parts. Only what the first found in a cache was there before the call."""
    scores = np.concatenate([part["scores"] for part in parts], axis=1)
    usage = np.array([[len(job.prompt.tokens), parts[0]["usage"][0, 1]]], np.int32)
    return {"scores": scores, "usage": usage}
