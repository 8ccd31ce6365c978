"""The `scorer` model: token ids in, scores out. The logic is in `hiscore.scoring`."""

from functools import partial
from typing import Any

import torch

from hiscore.batching.batched_model import BatchLimits
from hiscore.batching.batcher import Batcher
from hiscore.edge.feeds import CountsFeed, Exporter, batcher_feeds
from hiscore.edge.metrics import TritonMetrics
from hiscore.edge.start import read_start
from hiscore.edge.triton_io import error_log, serve
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.parallel.leader import lead
from hiscore.parallel.start import devices_of, freeze, load_on, log_as, thaw, use
from hiscore.scoring.batched_scorer import DEFAULT_BATCH_TOKENS, BatchedScorer
from hiscore.scoring.pair_scorer import make_scorer
from hiscore.scoring.request_reader import RequestReader
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.results.pending_scores import BatchStats
from hiscore.server.load_board import LoadBoard
from hiscore.settings import ScorerSettings

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
        start = read_start(ScorerSettings, args)
        self.settings = settings = start.settings
        device = torch.device(start.instance.device)
        if settings.adapters and device.type == "cuda":
            # Their kernels were compiled, and have run in an interpreter alone: tests/gpu/test_adapters_gpu.py.
            raise UnsupportedCheckpoint(
                "adapters are computed on a CPU alone: set DEVICE=cpu or ADAPTERS=off"
            )
        use(device, start.instance.of)
        self.resources = start.resources()
        leader = lead(devices_of(device, settings.tensor_parallel, torch.cuda.device_count()))
        leader.prepare(partial(log_as, log_format=settings.log_format, model=start.name))
        batch_tokens = settings.max_batch_tokens or DEFAULT_BATCH_TOKENS[device.type]
        load = partial(
            make_scorer,
            start.checkpoint,
            str(device),
            settings.dtype,
            batch_tokens,
            settings.query_cache_bytes,
            settings.max_context,
            self.resources,
            leader,
            settings.adapter_directories,
        )
        self.scorer = load_on(device, load)
        # The device tells the instances apart.
        labels = start.labels | {"device": start.instance.name}
        self.counts = CountsFeed(TritonMetrics(COUNTERS, labels))
        board = LoadBoard(start.directory, start.name)
        self.batcher: Batcher[ScoreRequest] = Batcher(
            BatchedScorer(self.scorer, self.record),
            BatchLimits(
                batch_tokens,
                settings.max_queue,
                settings.max_queue_tokens,
                # On a CPU a call takes too long to keep others waiting for.
                max_alone_cost=batch_tokens // 4 if device.type == "cuda" else 0,
            ),
            board,
        )
        self.reader = RequestReader(self.scorer.facts, settings, self.scorer.packing.prompt)
        feeds = [self.counts, *batcher_feeds(labels, self.batcher.totals, error_log)]
        self.exporter = Exporter(feeds, labels)
        leader.prepare(freeze)
        leader.started()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        return serve(requests, self.reader.read, self.batcher, self.settings.queue_timeout_s)

    def finalize(self) -> None:
        self.batcher.close()
        self.scorer.close()
        self.exporter.close()
        resources = self.resources
        self.__dict__.clear()
        thaw()
        resources.close()

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
