"""The `decode` model: streams tokens and text for a prompt. The logic is in `hiscore.decoding`."""

import logging
import os
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch

from hiscore.arrays import Outputs
from hiscore.decoding.engine.engine import DecodeEngine
from hiscore.decoding.engine.intake import DecodeRequest, PromptReader, RequestIntake
from hiscore.decoding.engine.response_sender import ResponseSender
from hiscore.decoding.engine.stats import COUNTERS, GAUGES, EngineStats, StatsFeed
from hiscore.decoding.engine.times import HISTOGRAMS
from hiscore.decoding.requests.generation_config import describe, read_defaults
from hiscore.decoding.requests.grammar import GrammarCompiler
from hiscore.decoding.requests.sampling_params import NO_DEFAULTS, parse_sampling_params
from hiscore.decoding.requests.vllm_inputs import answer_shape, merge_parameters
from hiscore.decoding.worker.build import make_worker
from hiscore.device.loss import end_if_device_is_lost
from hiscore.edge.feeds import ErrorsFeed, Exporter, histogram_feeds
from hiscore.edge.metrics import Rejects, TritonMetrics
from hiscore.edge.start import read_start
from hiscore.edge.triton_io import ReplyTo, caller_timeout_s, error_log, flag, parameters, string, tensor
from hiscore.errors import to_request_error
from hiscore.models.facts import generation_context, read_facts
from hiscore.models.support import choose_selector, has_tokenizer, read_eos_ids
from hiscore.parallel.leader import lead
from hiscore.parallel.start import devices_of, freeze, load_on, log_as, thaw, use
from hiscore.server.load_board import LoadBoard
from hiscore.settings import DecodeSettings
from hiscore.settings.groups import MAX_TEXT_BYTES
from hiscore.tokenization.detokenizer import DetokenizerFactory
from hiscore.tokenization.tokenizer import load_tokenizer

log = logging.getLogger("hiscore.decode.model")


class TritonPythonModel:
    """`execute` only validates requests and queues them; the engine's and the sender's threads do the rest."""

    def initialize(self, args: dict[str, str]) -> None:
        start = read_start(DecodeSettings, args)
        settings, checkpoint = start.settings, start.checkpoint
        device = torch.device(start.instance.device)
        use(device, start.instance.of)
        self.resources = start.resources()
        tokenizer = load_tokenizer(checkpoint) if has_tokenizer(checkpoint) else None
        context = generation_context(checkpoint, settings.max_context)
        facts, eos_ids = read_facts(checkpoint, context), read_eos_ids(checkpoint)
        grammars = GrammarCompiler(tokenizer.backend, facts.vocab_size, eos_ids) if tokenizer else None
        prompts = PromptReader(facts, tokenizer, MAX_TEXT_BYTES, grammars)
        self.defaults = NO_DEFAULTS
        if settings.generation_config == "checkpoint":
            self.defaults = read_defaults(checkpoint)
            log.info("defaults of requests from generation_config.json: %s", describe(self.defaults))
        labels = start.labels | {"device": start.instance.name}
        self.leader = lead(devices_of(device, settings.tensor_parallel, torch.cuda.device_count()))
        self.leader.prepare(partial(log_as, log_format=settings.log_format, model=start.name))
        selector = choose_selector(settings.selector, start.capabilities.selectors)
        settings = settings.model_copy(update={"selector": selector})
        worker = load_on(device, partial(make_worker, settings, checkpoint, self.leader, self.resources))
        self.board = LoadBoard(start.directory, start.name)
        self.sender = ResponseSender(
            partial(ReplyTo.send, streamed=True),
            is_cancelled=ReplyTo.is_cancelled,
            cancel=lambda stream: self.engine.cancel(stream),
        )
        self.engine = DecodeEngine(
            worker,
            DetokenizerFactory(tokenizer.backend).new if tokenizer else None,
            eos_ids,
            settings.max_queue,
            emit=self.sender.put,
            on_failure=end_if_device_is_lost,
            on_death=self.exit,
            board=self.board,
            overlap=device.type == "cuda",
        )
        self.intake = RequestIntake(prompts, self.engine.submit, self.sender.put)
        counters, gauges = TritonMetrics(COUNTERS, labels), TritonMetrics(GAUGES, labels, gauges=True)
        stats = StatsFeed(self.stats, counters.set, gauges.set, Rejects(labels).raise_to)
        histograms = histogram_feeds(HISTOGRAMS, labels, self.engine.times)
        self.exporter = Exporter([stats, ErrorsFeed(labels, error_log), *histograms], labels)
        self.queue_timeout_s = settings.queue_timeout_s
        self.leader.prepare(freeze)
        self.leader.started()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            try:
                decode_request, shape = self.read(request)
            except Exception as error:
                self.sender.put(self.sender.open(ReplyTo.of(request)), to_request_error(error))
            else:
                whole = not decode_request.params.stream
                stream = self.sender.open(ReplyTo.of(request), whole, shape)
                self.intake.accept(decode_request, stream)
        self.board.wait_for_turn()

    def finalize(self) -> None:
        self.intake.close()
        self.engine.close()
        self.leader.close()
        self.sender.close()
        self.exporter.close()
        resources = self.resources
        self.__dict__.clear()
        thaw()
        resources.close()

    def read(self, request: Any) -> tuple[DecodeRequest, Callable[[Outputs], Outputs]]:
        given = merge_parameters(
            parameters(request), string(request, "sampling_parameters"), flag(request, "stream")
        )
        params = parse_sampling_params(given, self.defaults)
        ids, text = tensor(request, "input_ids"), string(request, "text_input")
        of_shape = ("exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens")
        shape = answer_shape(text, params.stream, *(flag(request, name) for name in of_shape))
        now = time.monotonic()
        ids = None if ids is None else ids.astype(np.int32)
        deadline, start_by = now + caller_timeout_s(request), now + self.queue_timeout_s
        return DecodeRequest(ids, text, params, deadline, start_by), shape

    def stats(self) -> EngineStats:
        stats = self.engine.stats()
        return replace(stats, full=stats.full + self.intake.num_refused)

    def exit(self, error: Exception) -> None:
        """Without the engine's thread no call would ever be answered: let the server be restarted."""
        self.sender.close()
        os._exit(1)
