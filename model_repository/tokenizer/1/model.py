"""The `tokenizer` model: a query and its items in text to their wire layout in token ids."""

from pathlib import Path
from typing import Any

import numpy as np

from hiscore.errors import RequestError
from hiscore.logs import configure_model
from hiscore.models.facts import read_facts
from hiscore.parameters import one_row
from hiscore.scoring.batched_tokenizer import BatchedTokenizer, EncodeStats
from hiscore.scoring.encoding_plan import TextRequest
from hiscore.scoring.options import parse_options
from hiscore.serving.batched_model import BatchLimits
from hiscore.serving.batcher import Batcher
from hiscore.serving.feeds import CountsFeed, Exporter, batcher_feeds
from hiscore.serving.metrics import Counters
from hiscore.serving.triton_io import error_log, parameters, required_tensor, serve, strings, tensor
from hiscore.settings import TokenizerSettings, from_model_directory
from hiscore.tokenization.tokenizer import load_tokenizer

# Bytes of text encoded in one batch: enough to use every core, few enough that a small request does not wait long.
MAX_BATCH_BYTES = 2**20
# Bytes of text that are encoded at once when nothing else is: a few milliseconds.
MAX_ALONE_BYTES = 2**15

COUNTERS = {
    "hiscore_full_encodes_total": "Calls whose whole query was encoded again with each of its items",
    "hiscore_tokenized_calls_total": "Calls turned from text into token ids",
    "hiscore_tokenizer_batches_total": "Batches that the tokenizer formed",
}


class TritonPythonModel:
    """One instance serves all requests; the tokenizer itself uses the machine's cores."""

    def initialize(self, args: dict[str, str]) -> None:
        self.settings = settings = from_model_directory(TokenizerSettings, Path(args["model_repository"]))
        configure_model(settings.log_format, args["model_name"])
        checkpoint = Path(settings.checkpoint)
        labels = {"model": args["model_name"], "version": args["model_version"]}
        self.counts = CountsFeed(Counters(COUNTERS, labels))
        facts = read_facts(checkpoint, settings.max_context)
        self.batcher: Batcher[TextRequest] = Batcher(
            BatchedTokenizer(load_tokenizer(checkpoint, facts.is_encoder), settings, facts, self.record),
            BatchLimits(MAX_BATCH_BYTES, settings.max_queue, max_alone_cost=MAX_ALONE_BYTES),
        )
        feeds = batcher_feeds(labels, self.batcher.totals, error_log)
        self.exporter = Exporter([self.counts, *feeds], labels)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        return serve(requests, read, self.batcher, self.settings.queue_timeout_s)

    def finalize(self) -> None:
        self.batcher.close()
        self.exporter.close()

    def record(self, stats: EncodeStats) -> None:
        """Count a batch."""
        self.counts.add(
            hiscore_full_encodes_total=stats.full_encodes,
            hiscore_tokenized_calls_total=stats.requests,
            hiscore_tokenizer_batches_total=1,
        )


def read(request: Any) -> TextRequest:
    """Read the tensors and parameters of a request."""
    options = parse_options(parameters(request))
    query, items = (one_row(name, required_tensor(request, name), np.object_) for name in ("query", "items"))
    if len(query) != 1:
        raise RequestError(f"'query' must be one string, not {len(query)}")
    labels, label_ids = tensor(request, "labels"), tensor(request, "label_token_ids")
    labels = None if labels is None else one_row("labels", labels, np.object_)
    return TextRequest(
        query=strings(query, "query")[0],
        items=strings(items, "items"),
        labels=None if labels is None else strings(labels, "labels"),
        label_token_ids=None if label_ids is None else one_row("label_token_ids", label_ids, np.int32).copy(),
        label_counts=options.label_counts,
        item_first=options.item_first,
        text_bytes=sum(sum(map(len, texts)) for texts in (query, items, labels) if texts is not None),
    )
