"""The `tokenizer` model: a query and its items in text to their wire layout in token ids."""

from typing import Any

from hiscore.batching.batcher import Batcher
from hiscore.edge.feeds import CountsFeed, Exporter, batcher_feeds
from hiscore.edge.metrics import TritonMetrics
from hiscore.edge.start import read_start
from hiscore.edge.triton_io import error_log, parameters, serve
from hiscore.models.facts import read_facts
from hiscore.scoring.request_reader import read_text
from hiscore.scoring.requests.options import parse_options
from hiscore.scoring.text.batched_tokenizer import (
    COUNTERS,
    BatchedTokenizer,
    TextJob,
    batch_limits,
)
from hiscore.settings import TokenizerSettings
from hiscore.tokenization.tokenizer import load_tokenizer


class TritonPythonModel:
    """One instance serves all requests; the tokenizer itself uses the machine's cores."""

    def initialize(self, args: dict[str, str]) -> None:
        start = read_start(TokenizerSettings, args)
        self.settings = settings = start.settings
        self.counts = CountsFeed(TritonMetrics(COUNTERS, start.labels))
        facts = read_facts(start.checkpoint, settings.max_context, settings.adapter_directories)
        tokenizer = load_tokenizer(start.checkpoint, facts.joins_pairs)
        self.tokenizer = BatchedTokenizer(tokenizer, settings, facts, self.counts.add)
        self.batcher: Batcher[TextJob] = Batcher(self.tokenizer, batch_limits(settings.max_queue))
        feeds = batcher_feeds(start.labels, self.batcher.totals, error_log)
        self.exporter = Exporter([self.counts, *feeds], start.labels)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        return serve(requests, self.read, self.batcher, self.settings.queue_timeout_s)

    def finalize(self) -> None:
        self.batcher.close()
        self.exporter.close()

    def read(self, request: Any) -> TextJob:
        return self.tokenizer.job(read_text(request, parse_options(parameters(request))))
