"""What the scorer does on its device, or on each of its ranks: plan the memory, load, and compute batches."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Int64
from hiscore.attention.metadata import Forward
from hiscore.device import Uploads, free_bytes, memory_of
from hiscore.layers.lm_head import LMHead
from hiscore.models.config import Architecture, read_architecture
from hiscore.models.decoder import Decoder, weights_key
from hiscore.models.loader import load_weights
from hiscore.models.planned_weights import planned_bytes
from hiscore.models.server_resources import ServerResources
from hiscore.models.sharding import of_rank, share_of
from hiscore.models.weight_bytes import weight_bytes
from hiscore.parallel.rank import Leader, Rank
from hiscore.prefill.interface import ForwardRunner
from hiscore.prefill.runner import make_runner
from hiscore.scoring.head_results import HeadResult, head_results
from hiscore.scoring.memory import PoolSizes, default_cache_bytes, plan_memory, pool_sizes
from hiscore.scoring.precision import dtype_of, pick_dtype, use_device
from hiscore.scoring.prefix_cache import PAGE
from hiscore.scoring.request import ScoreRequest

log = logging.getLogger(__name__)
PLACE = "scorer"
"""Where a rank holds its `Computation`."""


@dataclass(frozen=True)
class Computation:
    """Computes batches on one device.

    Attributes:
        runner: Runs the forwards.
        head: The checkpoint's LM head, or a classifier's.
        is_classifier: Whether the head is a classifier's.
        device: Where.
    """

    runner: ForwardRunner
    head: LMHead
    is_classifier: bool
    device: torch.device

    def compute(self, forwards: Sequence[Forward], requests: Sequence[ScoreRequest]) -> list[HeadResult]:
        """The results of the head for a batch; on CUDA this only launches the work."""
        return self.read_out(self.runner.forward(forwards), forwards, requests)

    def read_out(
        self, hidden: Tensor, forwards: Sequence[Forward], requests: Sequence[ScoreRequest]
    ) -> list[HeadResult]:
        """What the head needs is worked out, and sent, only now: a GPU is still at work on the hidden states."""
        places, uploads = _places(forwards), Uploads(self.device)
        return head_results(self.head, requests, self.is_classifier, places, uploads)(hidden)


@dataclass(frozen=True)
class Checkpoint:
    """What is computed, and in which numbers.

    Attributes:
        directory: Its files.
        dtype: The setting.
        max_context: The setting.
        budget: Tokens of one forward.
    """

    directory: Path
    dtype: str
    max_context: int | None
    budget: int


def set_up(
    leader: Leader, of: Checkpoint, cache_bytes: int | None, resources: ServerResources
) -> tuple[Computation, PoolSizes]:
    """Plan the memory of all ranks, load the checkpoint and, on CUDA, capture graphs.

    Args:
        leader: Has all ranks do what it is given.
        of: The checkpoint.
        cache_bytes: On each rank's device, for keys and values of cached queries; None: see `default_cache_bytes`.
        resources: What the model shares with its server.

    Raises:
        UnsupportedCheckpoint, MemoryExceeded, ValueError: See `Scorer`.
        RankError: The same on one of several ranks.
    """
    leader.prepare(partial(enter, resources=resources))
    # The pools of all ranks are of one size, since a slot is the same on each.
    cache_bytes = default_cache_bytes(leader.do(least_free)) if cache_bytes is None else cache_bytes
    pool = leader.prepare(partial(claim, of=of, cache_bytes=cache_bytes))
    leader.prepare(partial(load, of=of))
    return leader.do(partial(finish, slots=pool.pages * PAGE, budget=of.budget), wait_for_all=True), pool


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
    weights = resources.weights_line(size, weights_key(rank.device, dtype, fp8, shard))
    owner = resources.owner("scorer", rank.device, shard.rank, shard.ranks)
    sliced = launches_in_slices(rank, a)
    plan = plan_memory(place, sized, number_bytes, weights, of.budget, pool.pages, sliced)
    resources.ledger.claim(owner, plan)
    return pool


def launches_in_slices(rank: Rank, a: Architecture) -> bool:
    """Whether a GPU launches large forwards of a checkpoint in slices, and small ones between them."""
    # Several ranks are told of whole batches. With longrope a prompt may compute its query twice: without a price
    # for that, nothing can be said to be small.
    return rank.shard.ranks == 1 and a.original_context is None


def load(rank: Rank, of: Checkpoint) -> None:
    """Load the rank's share of the weights."""
    resources: ServerResources = rank.held["resources"]
    whole, _ = read_architecture(of.directory, of.max_context)
    precision = pick_dtype(of.dtype, rank.device, whole.stored_in_fp8)
    dtype, fp8 = dtype_of(precision), precision == "fp8"
    decoder = Decoder(of.directory, rank.device, dtype, fp8, of.max_context, resources.weights, rank.group)
    decoder.after_layer = resources.progress
    rank.held["decoder"] = decoder


def finish(rank: Rank, slots: int, budget: int) -> Computation:
    """Allocate the KV pool and, on CUDA, capture graphs, in which ranks exchange what they compute."""
    decoder: Decoder = rank.held.pop("decoder")
    in_slices = launches_in_slices(rank, decoder.architecture)
    runner = make_runner(decoder, slots, budget, in_slices=in_slices)
    if decoder.device.type == "cuda":
        from hiscore.kernels.pair_products import compile_for

        compile_for(decoder.weights.head)  # or it would hold up the first batch
    rank.held[PLACE] = Computation(runner, decoder.head(), decoder.architecture.is_classifier, decoder.device)
    return computation(rank)


@torch.inference_mode()
def compute(rank: Rank, forwards: Sequence[Forward], requests: Sequence[ScoreRequest]) -> list[HeadResult]:
    """See `Computation.compute`."""
    return computation(rank).compute(forwards, requests)


def computation(rank: Rank) -> Computation:
    """What a rank computes with."""
    found: Computation = rank.held[PLACE]
    return found


def _places(forwards: Sequence[Forward]) -> Int64:
    """int64 [R]: the row of each item of a batch among those that its forwards read, in whatever order they do."""
    items = np.concatenate([np.empty(0, np.int64), *(forward.scored_items for forward in forwards)])
    return np.argsort(items)
