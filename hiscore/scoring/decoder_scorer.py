"""Loads the scorer of a decoder: plans the memory of its ranks, loads weights and, on CUDA, captures graphs."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from hiscore.device.copies import free_bytes, memory_of
from hiscore.layers.lm_head import LMHead
from hiscore.models.adapter_files import AdapterFiles
from hiscore.models.adapter_weights import read_files
from hiscore.models.config import Architecture, read_architecture
from hiscore.models.decoder import Decoder, weights_key
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.facts import read_facts
from hiscore.models.loader import load_weights
from hiscore.models.modular_head import head_bytes
from hiscore.models.planned_weights import planned_bytes
from hiscore.models.sharding import of_rank
from hiscore.models.support import read_eos_ids
from hiscore.parallel.rank import Leader, Rank
from hiscore.prefill.runner import make_runner
from hiscore.recurrence.metadata import CHUNK
from hiscore.scoring.computation import PLACE, Computation, computation
from hiscore.scoring.memory import PoolSizes, default_cache_bytes, plan_memory, pool_sizes
from hiscore.scoring.packing.branches import choose_apart
from hiscore.scoring.packing.longrope import LongropeTables
from hiscore.scoring.packing.packing import Batch, pack
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.packing.state_cache import StateCache
from hiscore.scoring.precision import dtype_of, pick_dtype, use_device, warn_if_slow
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import MultiItemPrompt
from hiscore.scoring.scorer import Packing, Scorer
from hiscore.server.server_resources import ServerResources

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class DecoderPacking(Packing):
    """Packs a decoder's prompts: items share their query, which stays cached."""

    longrope: LongropeTables | None = None

    def prompt(self, prompt: MultiItemPrompt) -> MultiItemPrompt:
        prompt = choose_apart(prompt, self.budget, self.cache)
        return prompt if self.longrope is None else self.longrope.of(prompt)

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
    adapters: Mapping[str, Path] | None = None,
) -> Scorer:
    """Plan the memory, load a checkpoint, allocate its KV pool and, on CUDA, capture graphs.

    Args:
        device: A name for `torch.device`; "auto": a GPU if there is one.
        dtype: "auto": bfloat16 on a GPU, else float32.
        max_batch_tokens: Tokens of one forward.
        query_cache_bytes: For keys and values of cached queries; 0: no cache; None: `default_cache_bytes`.
        max_context: Tokens of query and item; None: the checkpoint's `context_limit`.
        leader: The leader of the ranks that compute together; None: there is one rank.
        adapters: Directory of each adapter by name.

    Raises:
        UnsupportedCheckpoint: The decoder cannot compute the checkpoint.
        MemoryExceeded: The device has no room for it.
        ValueError: The device has no such format, or `max_context` exceeds the checkpoint's context.
        RankError: One of these, on one of several ranks.
    """
    leader = leader or Leader(use_device(device))
    on, ranks = leader.rank.device, leader.rank.shard.ranks
    a, config = read_architecture(checkpoint, max_context)
    if adapters and ranks > 1:
        raise UnsupportedCheckpoint("ADAPTERS are computed by one rank alone: leave TENSOR_PARALLEL unset")
    if a.recurrence is not None and max_batch_tokens < CHUNK:
        raise UnsupportedCheckpoint(
            f"MAX_BATCH_TOKENS is {max_batch_tokens}, and recurrent layers need at least {CHUNK}"
        )
    if (
        a.is_classifier
        and not (a.scores_tokens or a.modular)
        and config.pad_token_id in read_eos_ids(checkpoint)
    ):
        log.warning(
            "the pad token of this classifier, %d, also ends texts: scores are read at the last token sent, "
            "and transformers reads the last that is no pad. Send texts without it for transformers' scores",
            config.pad_token_id,
        )
    precision = pick_dtype(dtype, on, a.stored_in_fp8)
    warn_if_slow(precision, on)
    files = tuple(read_files(adapters or {}, a))
    of = Checkpoint(checkpoint, dtype, max_context, max_batch_tokens, files)
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
    return Scorer(computation, read_facts(checkpoint, max_context, adapters), packing, leader)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint and the settings by which it is loaded; `budget` counts the tokens of one forward."""

    directory: Path
    dtype: str
    max_context: int | None
    budget: int
    adapters: tuple[AdapterFiles, ...] = ()


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
    sized = replace(a, vocab_size=shard.count(a.vocab_size))
    size = planned_bytes(partial(load_weights, of.directory, whole, dtype=dtype, fp8=fp8, shard=shard))
    size += head_bytes(of.directory) if whole.modular else 0
    weights = resources.weights_line(size, weights_key(of.directory, rank.device, dtype, fp8, shard))
    owner = resources.owner(rank.device, shard.rank, shard.ranks)
    sliced = launches_in_slices(rank, a)
    numbers = sum(each.numbers for each in of.adapters)
    plan = plan_memory(place, sized, number_bytes, weights, of.budget, pool, sliced, numbers)
    resources.ledger.claim(owner, plan)
    return pool


def launches_in_slices(rank: Rank, a: Architecture) -> bool:
    """Tell whether a GPU launches large forwards of a checkpoint in slices, and small ones between them."""
    # Several ranks are told of whole batches. With longrope a prompt may compute its query twice: without a price
    # for that, nothing can be said to be small. States are handed on from forward to forward.
    return rank.shard.ranks == 1 and a.original_context is None and a.recurrence is None


def load(rank: Rank, of: Checkpoint) -> None:
    resources: ServerResources = rank.held["resources"]
    whole, _ = read_architecture(of.directory, of.max_context)
    precision = pick_dtype(of.dtype, rank.device, whole.stored_in_fp8)
    dtype, fp8 = dtype_of(precision), precision == "fp8"
    decoder = Decoder(
        of.directory, rank.device, dtype, fp8, of.max_context, resources.weights, rank.group, of.adapters
    )
    decoder.after_layer = resources.progress
    rank.held["decoder"] = decoder


def finish(rank: Rank, pool: PoolSizes, budget: int) -> Computation:
    """Allocate the KV pool and, on CUDA, capture graphs, in which ranks exchange what they compute."""
    decoder: Decoder = rank.held.pop("decoder")
    in_slices = launches_in_slices(rank, decoder.architecture)
    runner = make_runner(decoder, pool.pages * PAGE, budget, in_slices=in_slices, states=pool.states)
    joint = None if decoder.adapters is None else decoder.adapters.head
    if decoder.device.type == "cuda":
        from hiscore.kernels.pair_products import compile_for

        for weight in (decoder.weights.head, joint):
            if weight is not None:
                compile_for(weight)  # or it would hold up the first batch
    heads = None if joint is None else LMHead(joint, logit_soft_cap=None)
    rank.held[PLACE] = Computation(runner, decoder.head(), decoder.device, heads)
    return computation(rank)
