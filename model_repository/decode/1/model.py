"""The ``decode`` model: a prompt to a stream of tokens and text. The logic is in `hiscore.decoding`."""

import gc
import logging
import math
import os
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.decoding.engine import DecodeEngine
from hiscore.decoding.intake import Asked, Intake
from hiscore.decoding.metrics import COUNTERS, GAUGES, MetricsFeed, descriptions
from hiscore.decoding.request import PromptReader
from hiscore.decoding.sampling_params import parse_decode_options
from hiscore.decoding.worker.build import make_worker
from hiscore.errors import to_request_error
from hiscore.logs import configure_model
from hiscore.models.config import read_facts
from hiscore.models.support import has_tokenizer, read_eos_ids
from hiscore.serving.device_loss import end_if_device_is_lost
from hiscore.serving.metrics import Counters, Gauges, Rejects
from hiscore.serving.response_sender import StreamSender
from hiscore.serving.triton_io import ReplyTo, parameters, send, strings, tensor
from hiscore.settings import DecodeSettings, from_model_config
from hiscore.tokenization import load_tokenizer
from hiscore.tokenization.detokenizer import TextDecoder

log = logging.getLogger("hiscore.decode.model")


class TritonPythonModel:
    """`execute` only checks calls and puts them into the engine's queue; other threads do the rest."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = from_model_config(DecodeSettings, args["model_config"])
        configure_model(settings.log_format, args["model_name"])
        checkpoint = Path(settings.checkpoint)
        on_cpu = args["model_instance_kind"] == "CPU"
        tokenizer = load_tokenizer(checkpoint) if has_tokenizer(checkpoint) else None
        prompts = PromptReader(read_facts(checkpoint), tokenizer, settings.max_text_bytes)
        device = "cpu" if on_cpu else f"cuda:{args['model_instance_device_id']}"
        labels = {"model": args["model_name"], "version": args["model_version"], "device": device}
        self.counters = Counters(descriptions(COUNTERS), labels)
        self.gauges = Gauges(descriptions(GAUGES), labels)
        self.rejects = Rejects(labels)
        self.feed = MetricsFeed(self.counters.add, self.gauges.set, self.rejects.add)
        worker = make_worker(settings, device)
        self.sender = StreamSender(
            partial(send, streamed=True),
            abandoned=lambda reply_to: reply_to.sender.is_cancelled(),
            cancel=lambda caller: self.engine.cancel(caller),
            count=self.count,
        )
        self.engine = DecodeEngine(
            worker,
            TextDecoder(tokenizer.backend).stream if tokenizer else None,
            read_eos_ids(checkpoint),
            settings.max_queue,
            emit=self.sender.put,
            failed=end_if_device_is_lost,
            died=self.end,
        )
        self.intake = Intake(prompts, self.engine.submit, self.sender.put)
        self.queue_timeout_s = settings.queue_timeout_s
        # What is loaded stays: the collector need not walk it again and again while streams run.
        gc.collect()
        gc.freeze()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            caller = self.sender.open(ReplyTo.of(request))
            try:
                asked = self.read(request)
            except Exception as error:
                self.sender.put(caller, to_request_error(error))
            else:
                self.intake.take(asked, caller)

    def finalize(self) -> None:
        self.intake.close()
        self.engine.close()
        self.sender.close()
        gc.unfreeze()  # or libraries report at exit as leaked what was only set aside

    def read(self, request: Any) -> Asked:
        options = parse_decode_options(parameters(request))
        ids, texts = tensor(request, "input_ids"), tensor(request, "text_input")
        asked_us = request.timeout()
        now = time.monotonic()
        return Asked(
            None if ids is None else ids.astype(np.int32),
            None if texts is None else strings(texts, "text_input")[0],
            options,
            deadline=now + asked_us / 1e6 if asked_us else math.inf,
            start_by=now + self.queue_timeout_s,
        )

    def count(self) -> bool:
        """Bring the metrics up to date; whether nothing is left that could change them."""
        stats = self.engine.stats()
        self.feed.update(replace(stats, full=stats.full + self.intake.full))
        return stats.idle

    def end(self, error: Exception) -> None:
        """Without the engine's thread no call is ever answered: whoever watches the server starts a new one."""
        self.sender.close()
        os._exit(1)
