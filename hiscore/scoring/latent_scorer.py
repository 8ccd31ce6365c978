"""The scorer of decoders with latent attention, on a CPU: items branch from the latents of their query."""

import logging
from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hiscore.attention.metadata import Forward
from hiscore.device.copies import free_bytes, memory_of
from hiscore.models.decoder import weights_key
from hiscore.models.deepseek.activations import kernel_prefill_bytes
from hiscore.models.deepseek.config import read_architecture
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.expanded import costs_more
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from hiscore.models.deepseek.loader import load_weights
from hiscore.models.facts import read_facts
from hiscore.models.planned_weights import planned_bytes
from hiscore.prefill.interface import Runner
from hiscore.scoring.computation import Computation
from hiscore.scoring.decoder_scorer import DecoderPacking
from hiscore.scoring.memory import HEAD_ROWS, PROCESS_BYTES, default_cache_bytes
from hiscore.scoring.packing.packing import pool_reserve
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.precision import DTYPES, pick_dtype, use_device, warn_if_slow
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.scorer import Scorer
from hiscore.server.plan import MemoryLine, MemoryPlan
from hiscore.server.server_resources import ServerResources

log = logging.getLogger(__name__)


class LatentRunner(Runner):
    """Runs forwards of at most `max_rows` rows; an indexer selects among the tokens that a row sees."""

    def __init__(self, decoder: DsaDecoder, slots: int, max_rows: int) -> None:
        self._decoder, self._slots = decoder, slots
        # Behind the pool each row has a place, for a token that is not kept.
        self._latents = StagedLatents(decoder.architecture, slots + max_rows, decoder.device, decoder.dtype)
        self.pool = self._latents.pool

    @torch.inference_mode()
    def forward(self, forwards: Sequence[Forward]) -> Tensor:
        nothing = torch.empty((0, self._decoder.architecture.hidden_size), dtype=self._decoder.dtype)
        return torch.cat([nothing, *map(self._forward, forwards)])

    def _forward(self, forward: Forward) -> Tensor:
        self._latents.plan(self._segments(forward))
        ids, positions = torch.from_numpy(forward.input_ids), torch.from_numpy(forward.positions)
        x, attended = self._decoder.body(ids, positions, self._latents)
        scored = torch.from_numpy(forward.scored_rows)
        return self._decoder.tail(x[scored], attended[scored])

    def _segments(self, forward: Forward) -> list[Segment]:
        """Give each segment the slots of its context, then its own."""
        rows = np.arange(len(forward.input_ids))
        slots = np.where(forward.slot_mapping < 0, self._slots + rows, forward.slot_mapping)
        edges, segments = forward.cu_seqlens.astype(np.int64), []
        for group in forward.groups:
            context = np.concatenate((group.context_slots, slots[group.context_rows], group.own_slots))
            inside = edges[(edges >= group.first_row) & (edges <= group.last_row)].tolist()
            for first, last in pairwise(inside):
                own = torch.from_numpy(np.concatenate((context, slots[first:last])))
                absorbed = costs_more(self._decoder.architecture, last - first)
                segments.append(Segment(own, last - first, absorbed=absorbed))
        return segments


def load_latent_scorer(
    checkpoint: Path,
    device: str = "auto",
    dtype: str = "auto",
    max_batch_tokens: int = 16_384,
    query_cache_bytes: int | None = None,
    max_context: int | None = None,
    resources: ServerResources | None = None,
) -> Scorer:
    """Plan the memory, load a checkpoint and allocate its pool; arguments are those of `load_decoder_scorer`."""
    on, resources = use_device(device), resources or ServerResources()
    a, _ = read_architecture(checkpoint, max_context)
    precision = pick_dtype(dtype, on)
    warn_if_slow(precision, on)
    numbers = DTYPES[precision]
    free = resources.ledger.free(memory_of(on), lambda: free_bytes(on)) // resources.instance.of
    cache_bytes = default_cache_bytes(free) if query_cache_bytes is None else query_cache_bytes
    of_token = (a.layers * a.row_dim + sum(a.own_index) * a.indexer.head_dim) * numbers.itemsize
    reserve = pool_reserve(a.context_length, max_batch_tokens)
    pages = max(reserve, cache_bytes // (PAGE * of_token))
    size = planned_bytes(partial(load_weights, checkpoint, a, dtype=numbers))
    weights = resources.weights_line(size, weights_key(checkpoint, on, numbers))
    latents = (pages * PAGE + max_batch_tokens) * of_token
    read = 2 * max(max_batch_tokens, a.context_length) * a.hidden_size * numbers.itemsize
    activations = kernel_prefill_bytes(a, max_batch_tokens, 0, numbers.itemsize) + read
    lines = (
        weights,
        MemoryLine("rotary tables", 4 * a.context_length * a.rope_dim, ("MAX_CONTEXT",)),
        MemoryLine("latents", latents, ("MAX_CONTEXT", "QUERY_CACHE_BYTES", "MAX_BATCH_TOKENS")),
        MemoryLine("activations", activations + 3 * 4 * HEAD_ROWS * a.vocab_size, ("MAX_BATCH_TOKENS",)),
        MemoryLine("kernels and libraries", PROCESS_BYTES),
    )
    resources.ledger.claim(resources.owner(on), MemoryPlan(memory_of(on), lines))
    decoder = DsaDecoder(checkpoint, on, numbers, max_context, shared=resources.weights)
    decoder.after_layer = resources.progress
    runner = LatentRunner(decoder, pages * PAGE, max_batch_tokens)
    log.info(
        "%s decoder on %s in %s; sequences of at most %d tokens, forwards of at most %d; the pool holds %d tokens",
        a.family, on, precision, a.context_length, max_batch_tokens, pages * PAGE,
    )  # fmt: skip
    packing = DecoderPacking(max_batch_tokens, QueryCache(pages, reserve, caching=query_cache_bytes != 0))
    return Scorer(Computation(runner, decoder.head(), on), read_facts(checkpoint, max_context), packing)
