"""The `tokenizer` model: a query and its items in text to their wire layout in token ids."""

from pathlib import Path
from typing import Any

from hiscore.logs import configure_model
from hiscore.models.facts import read_facts
from hiscore.scoring.batched_tokenizer import BatchedTokenizer
from hiscore.scoring.encode import plan_request
from hiscore.scoring.encoding_plan import EncodingPlan
from hiscore.scoring.options import parse_options
from hiscore.scoring.text_inputs import read_text
from hiscore.scoring.text_reader import COUNTERS, EncodeStats
from hiscore.serving.batched_model import BatchLimits
from hiscore.serving.batcher import Batcher
from hiscore.serving.feeds import CountsFeed, Exporter, batcher_feeds
from hiscore.serving.metrics import Counters
from hiscore.serving.triton_io import error_log, parameters, serve
from hiscore.settings import TokenizerSettings, from_model_directory
from hiscore.tokenization.tokenizer import load_tokenizer

# Bytes of text encoded in one batch: enough to use every core, few enough that a small request does not wait long.
MAX_BATCH_BYTES = 2**20
# Bytes of text that are encoded at once when nothing else is: a few milliseconds.
MAX_ALONE_BYTES = 2**15

BATCHES = {"hiscore_tokenizer_batches_total": "Batches that the tokenizer formed"}


class TritonPythonModel:
    """One instance serves all requests; the tokenizer itself uses the machine's cores."""

    def initialize(self, args: dict[str, str]) -> None:
        self.settings = settings = from_model_directory(TokenizerSettings, Path(args["model_repository"]))
        configure_model(settings.log_format, args["model_name"])
        checkpoint = Path(settings.checkpoint)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.counts = CountsFeed(Counters(COUNTERS | BATCHES, labels))
        self.facts = facts = read_facts(checkpoint, settings.max_context)
        self.tokenizer = load_tokenizer(checkpoint, facts.is_encoder)
        self.batcher: Batcher[EncodingPlan] = Batcher(
            BatchedTokenizer(self.tokenizer, settings, facts, self.record),
            BatchLimits(MAX_BATCH_BYTES, settings.max_queue, max_alone_cost=MAX_ALONE_BYTES),
        )
        feeds = batcher_feeds(labels, self.batcher.totals, error_log)
        self.exporter = Exporter([self.counts, *feeds], labels)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        return serve(requests, self.read, self.batcher, self.settings.queue_timeout_s)

    def finalize(self) -> None:
        self.batcher.close()
        self.exporter.close()

    def record(self, stats: EncodeStats) -> None:
        """Count a batch."""
        self.counts.add(hiscore_tokenizer_batches_total=1, **stats.counts)

    def read(self, request: Any) -> EncodingPlan:
        text = read_text(request, parse_options(parameters(request)))
        return plan_request(self.tokenizer, text, self.settings, self.facts)
