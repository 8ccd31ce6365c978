"""Loads the scorer of a decoder: plans the memory of its ranks, loads weights and, on CUDA, captures graphs."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from hiscore.device.copies import free_bytes, memory_of
from hiscore.models.config import Architecture, read_architecture
from hiscore.models.decoder import Decoder, weights_key
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.loader import load_weights
from hiscore.models.planned_weights import planned_bytes
from hiscore.models.sharding import of_rank, share_of
from hiscore.models.support import CheckpointFacts, read_eos_ids
from hiscore.models.weight_bytes import weight_bytes
from hiscore.parallel.rank import Leader, OneRank, Rank
from hiscore.prefill.runner import make_runner
from hiscore.recurrence.metadata import CHUNK
from hiscore.scoring.computation import PLACE, Computation, computation
from hiscore.scoring.memory import PoolSizes, default_cache_bytes, plan_memory, pool_sizes
from hiscore.scoring.packing.batch_plan import ScoringPlan
from hiscore.scoring.packing.longrope import LongropeTables
from hiscore.scoring.packing.packing import Batch, pack
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.packing.state_cache import StateCache
from hiscore.scoring.precision import dtype_of, pick_dtype, use_device, warn_if_slow
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.scoring.scorer import Scorer
from hiscore.server.server_resources import ServerResources

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecoderPacking:
    """Packs a decoder's prompts into forwards of `budget` tokens: items share their query, which stays cached."""

    budget: int
    cache: QueryCache
    longrope: LongropeTables | None = None

    def prompt(self, prompt: MultiItemPrompt) -> MultiItemPrompt:
        return prompt if self.longrope is None else self.longrope.of(prompt)

    def plan(self) -> ScoringPlan:
        return ScoringPlan(self.cache, self.budget)

    def pack(self, prompts: Sequence[MultiItemPrompt]) -> Batch:
        return pack(prompts, self.budget, self.cache, self.longrope)


def load_decoder_scorer(
    checkpoint: Path,
    device: str = "auto",
    dtype: str = "auto",
    max_batch_tokens: int = 16_384,
    query_cache_bytes: int | None = None,
    max_context: int | None = None,
    resources: ServerResources | None = None,
    leader: Leader | None = None,
) -> Scorer:
    """Plan the memory, load a checkpoint, allocate its KV pool and, on CUDA, capture graphs.

    Args:
        device: A name for `torch.device`; "auto": a GPU if there is one.
        dtype: "auto": bfloat16 on a GPU, else float32.
        max_batch_tokens: Tokens of one forward.
        query_cache_bytes: For keys and values of cached queries; 0: no cache; None: `default_cache_bytes`.
        max_context: Tokens of query and item; None: the checkpoint's `context_limit`.
        leader: The leader of the ranks that compute together; None: there is one rank.

    Raises:
        UnsupportedCheckpoint: The decoder cannot compute the checkpoint.
        MemoryExceeded: The device has no room for it.
        ValueError: The device has no such format, or `max_context` exceeds the checkpoint's context.
        RankError: One of these, on one of several ranks.
    """
    leader = leader or OneRank(use_device(device))
    on, ranks = leader.rank.device, leader.rank.shard.ranks
    a, config = read_architecture(checkpoint, max_context)
    if a.recurrence is not None and on.type != "cpu":
        raise UnsupportedCheckpoint(
            f"{a.family.name} has recurrent layers, which are computed on a CPU alone"
        )
    if a.recurrence is not None and max_batch_tokens < CHUNK:
        raise UnsupportedCheckpoint(
            f"MAX_BATCH_TOKENS is {max_batch_tokens}, and recurrent layers need at least {CHUNK}"
        )
    if a.is_classifier and config.pad_token_id in read_eos_ids(checkpoint):
        log.warning(
            "the pad token of this classifier, %d, also ends texts: scores are read at the last token sent, "
            "and transformers reads the last that is no pad. Send texts without it for transformers' scores",
            config.pad_token_id,
        )
    precision = pick_dtype(dtype, on, a.stored_in_fp8)
    warn_if_slow(precision, on)
    of = Checkpoint(checkpoint, dtype, max_context, max_batch_tokens)
    computation, pool = set_up(leader, of, query_cache_bytes, resources or ServerResources())
    original = a.original_context
    packing = DecoderPacking(
        max_batch_tokens,
        QueryCache(
            pool.pages,
            pool.reserve,
            caching=query_cache_bytes != 0,
            states=StateCache(pool.states) if pool.states else None,
        ),
        None if original is None else LongropeTables(original, second=a.context_length),
    )
    log.info(
        "%s decoder on %s%s in %s by %s; sequences of at most %d tokens, forwards of at most %d; the pool "
        "holds %d tokens, up to %d of them for calls of several forwards",
        a.family.name, on, f", the first of {ranks} ranks," if ranks > 1 else "", precision,
        type(computation.runner).__name__, a.context_length, max_batch_tokens, pool.pages * PAGE,
        pool.reserve * PAGE,
    )  # fmt: skip
    return Scorer(
        computation, CheckpointFacts(a.vocab_size, a.context_length, a.is_classifier), packing, leader
    )


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint and the settings by which it is loaded; `budget` counts the tokens of one forward."""

    directory: Path
    dtype: str
    max_context: int | None
    budget: int


def set_up(
    leader: Leader, of: Checkpoint, cache_bytes: int | None, resources: ServerResources
) -> tuple[Computation, PoolSizes]:
    """Plan the memory of all ranks, load the checkpoint and, on CUDA, capture graphs."""
    leader.prepare(partial(enter, resources=resources))
    # The pools of all ranks are of one size, since a slot is the same on each.
    cache_bytes = default_cache_bytes(leader.do(least_free)) if cache_bytes is None else cache_bytes
    pool = leader.prepare(partial(claim, of=of, cache_bytes=cache_bytes))
    leader.prepare(partial(load, of=of))
    return leader.do(partial(finish, pool=pool, budget=of.budget), wait_for_all=True), pool


def enter(rank: Rank, resources: ServerResources) -> None:
    """Take the device, and a place in the server."""
    use_device(str(rank.device))
    rank.held["resources"] = resources


def least_free(rank: Rank) -> int:
    """Bytes that are free for each rank, on the device that has least."""
    resources: ServerResources = rank.held["resources"]
    free = resources.ledger.free(memory_of(rank.device), lambda: free_bytes(rank.device))
    if rank.device.type != "cuda":
        free //= rank.shard.ranks * resources.instance.of
    most = rank.group.max(torch.tensor([-float(free)], dtype=torch.float64, device=rank.device))
    return -int(most.item())


def claim(rank: Rank, of: Checkpoint, cache_bytes: int) -> PoolSizes:
    """Claim the memory for everything, before any of it is allocated. Returns the size of the pool."""
    resources: ServerResources = rank.held["resources"]
    whole, _ = read_architecture(of.directory, of.max_context)
    precision = pick_dtype(of.dtype, rank.device, whole.stored_in_fp8)
    dtype, fp8, shard = dtype_of(precision), precision == "fp8", rank.shard
    a = of_rank(whole, shard)
    place, number_bytes = memory_of(rank.device), dtype.itemsize
    resources.ledger.free(place, lambda: free_bytes(rank.device))
    pool = pool_sizes(a, number_bytes, of.budget, cache_bytes)
    share = partial(share_of, a=whole, shard=shard)
    sized = replace(a, vocab_size=shard.count(a.vocab_size))
    if fp8:
        size = planned_bytes(partial(load_weights, of.directory, whole, dtype=dtype, fp8=fp8, shard=shard))
    else:
        size = weight_bytes(of.directory, number_bytes, share)
    weights = resources.weights_line(size, weights_key(of.directory, rank.device, dtype, fp8, shard))
    owner = resources.owner(rank.device, shard.rank, shard.ranks)
    sliced = launches_in_slices(rank, a)
    plan = plan_memory(place, sized, number_bytes, weights, of.budget, pool, sliced)
    resources.ledger.claim(owner, plan)
    return pool


def launches_in_slices(rank: Rank, a: Architecture) -> bool:
    """Tell whether a GPU launches large forwards of a checkpoint in slices, and small ones between them."""
    # Several ranks are told of whole batches. With longrope a prompt may compute its query twice: without a price
    # for that, nothing can be said to be small.
    return rank.shard.ranks == 1 and a.original_context is None


def load(rank: Rank, of: Checkpoint) -> None:
    resources: ServerResources = rank.held["resources"]
    whole, _ = read_architecture(of.directory, of.max_context)
    precision = pick_dtype(of.dtype, rank.device, whole.stored_in_fp8)
    dtype, fp8 = dtype_of(precision), precision == "fp8"
    decoder = Decoder(of.directory, rank.device, dtype, fp8, of.max_context, resources.weights, rank.group)
    decoder.after_layer = resources.progress
    rank.held["decoder"] = decoder


def finish(rank: Rank, pool: PoolSizes, budget: int) -> Computation:
    """Allocate the KV pool and, on CUDA, capture graphs, in which ranks exchange what they compute."""
    decoder: Decoder = rank.held.pop("decoder")
    in_slices = launches_in_slices(rank, decoder.architecture)
    runner = make_runner(decoder, pool.pages * PAGE, budget, in_slices=in_slices, states=pool.states)
    if decoder.device.type == "cuda":
        from hiscore.kernels.pair_products import compile_for

        compile_for(decoder.weights.head)  # or it would hold up the first batch
    rank.held[PLACE] = Computation(runner, decoder.head(), decoder.device)
    return computation(rank)
