"""The `scorer` model: token ids or texts in, scores out. The logic is in `hiscore.scoring`."""

import gc
from functools import partial
from pathlib import Path
from typing import Any

import torch

from hiscore.logs import configure_model
from hiscore.models.server_resources import ServerResources
from hiscore.parallel.leader import lead
from hiscore.parallel.start import devices_of, freeze, log_as, use
from hiscore.scoring.batched_scorer import BatchedScorer
from hiscore.scoring.pair_scorer import make_scorer
from hiscore.scoring.pending_scores import BatchStats
from hiscore.scoring.request import ScoreRequest
from hiscore.scoring.request_reader import RequestReader
from hiscore.scoring.text_reader import COUNTERS as TEXT_COUNTERS
from hiscore.scoring.text_reader import LARGE_BYTES, EncodeStats, TextReader
from hiscore.serving.background_reader import BackgroundReader
from hiscore.serving.batched_model import BatchLimits
from hiscore.serving.batcher import Batcher
from hiscore.serving.feeds import CountsFeed, Exporter, batcher_feeds
from hiscore.serving.load_board import LoadBoard
from hiscore.serving.metrics import Counters
from hiscore.serving.triton_io import error_log, instance_of, serve, server_directory
from hiscore.settings import ScorerSettings, from_model_directory
from hiscore.tokenization.tokenizer import load_tokenizer

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
        self.settings = settings = from_model_directory(ScorerSettings, Path(args["model_repository"]))
        configure_model(settings.log_format, args["model_name"])
        instance = instance_of(args, settings.cpu_instances)
        directory, device = server_directory(args), torch.device(instance.device)
        use(device, instance.of)
        self.resources = ServerResources.in_server(directory, args["model_name"], instance=instance)
        leader = lead(devices_of(device, settings.tensor_parallel, torch.cuda.device_count()))
        leader.prepare(partial(log_as, log_format=settings.log_format, model=args["model_name"]))
        checkpoint = Path(settings.checkpoint)
        self.scorer = make_scorer(
            checkpoint,
            str(device),
            settings.dtype,
            settings.max_batch_tokens,
            settings.query_cache_bytes,
            settings.max_context,
            self.resources,
            leader,
        )
        # The device tells the instances apart.
        labels = {
            "model": args["model_name"],
            "version": args["model_version"],
            "device": instance.name,
        }
        self.counts = CountsFeed(Counters(COUNTERS | TEXT_COUNTERS, labels))
        facts, texts = self.scorer.facts, None
        if settings.takes_text:
            tokenizer = load_tokenizer(checkpoint, facts.is_encoder)
            texts = TextReader(tokenizer, settings, facts, self.record_encoded)
        self.reader = RequestReader(facts, settings, self.scorer.prompt, texts)
        self.background = BackgroundReader(f"texts of more than {LARGE_BYTES} bytes")
        self.batcher: Batcher[ScoreRequest] = Batcher(
            BatchedScorer(self.scorer, self.record),
            BatchLimits(
                settings.max_batch_tokens,
                settings.max_queue,
                settings.max_queue_tokens,
                # On a CPU a call takes too long to keep others waiting for.
                max_alone_cost=settings.max_batch_tokens // 4 if device.type == "cuda" else 0,
            ),
            LoadBoard(directory, args["model_name"]),
        )
        feeds = batcher_feeds(labels, self.batcher.totals, error_log)
        self.exporter = Exporter([self.counts, *feeds], labels)
        leader.prepare(freeze)
        leader.started()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        timeout_s = self.settings.queue_timeout_s
        return serve(requests, self.reader.read, self.batcher, timeout_s, self.background)

    def finalize(self) -> None:
        self.background.close()
        self.batcher.close()
        self.scorer.close()
        self.resources.close()
        self.exporter.close()
        gc.unfreeze()  # otherwise libraries report the frozen objects as leaks at exit

    def record_encoded(self, stats: EncodeStats) -> None:
        """Count a call by text."""
        self.counts.add(**stats.counts)

    def record(self, stats: BatchStats | None) -> None:
        """Count a batch; canaries are not work."""
        if stats is not None:
            self.counts.add(
                hiscore_batches_total=1,
                hiscore_forwards_total=stats.forwards,
                hiscore_batch_tokens_total=stats.tokens,
                hiscore_items_total=stats.items,
                hiscore_cached_tokens_total=stats.cached_tokens,
            )
