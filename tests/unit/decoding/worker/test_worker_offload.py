"""After every step the host has what the forwards wrote: no token missing, none twice, none too early."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.models.mla import LatentStep
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.worker import CacheWorker
from hiscore.layers.ops import Ops
from hiscore.models.deepseek.latent_cache import StagedLatents
from tests.support.decoding import build, prompt
from tests.support.late_copies import LateCopies
from tests.support.tiers import first_of
from tests.support.worker_driver import Driver, host_rows

pytestmark = pytest.mark.slow  # whole models

# Family, tokens selected, tokens in the buffer.
SETTINGS = {
    "dense": ("llama", 16, 24),
    "quest": ("gemma2", 96, 128),
    "exact": ("llama", 16, 24),
    "dsa": ("glm-shared", 16, 24),
}
RINGS = [4, 1]
SEQUENCES = 6


@pytest.fixture
def kept(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """What forwards write, layer after layer: [T, C, H, D] each, recorded before it is stored."""
    layers: list[Tensor] = []
    rotate = Ops.rope_and_cache

    def rope_and_cache(self: Ops, layer: Any, rope: Any, qkv: Tensor, *args: Any) -> None:
        rotate(self, layer, rope, qkv, *args)
        k, v = qkv.unflatten(1, (-1, self._head_dim))[:, self._heads :].chunk(2, dim=1)
        layers.append(torch.stack((k, v), 1))

    monkeypatch.setattr(Ops, "rope_and_cache", rope_and_cache)
    for kind in (StagedLatents, LatentStep):

        def keep(self: Any, layer: int, row: Tensor, index_key: Tensor | None, keep: Any = kind.keep) -> None:
            keep(self, layer, row, index_key)
            layers.append(row[:, None, None].clone())

        monkeypatch.setattr(kind, "keep", keep)
    return layers


class Watched:
    """Sequences of a worker, and what its forwards wrote: [L, tokens, C, H, D] of each seq_index."""

    def __init__(self, worker: CacheWorker, kept: list[Tensor]) -> None:
        self.worker, self.driver = worker, Driver(worker)
        self.width = worker._schedule.width
        self._kept = kept
        self._written: dict[int, Tensor] = {}
        kept.clear()

    def admit(self, length: int, max_tokens: int) -> None:
        seq_index, _ = self.driver.admit(prompt(length, seed=length), max_tokens)
        self._written[seq_index] = self._take()

    def step(self) -> None:
        seq_indices = list(self.driver.sequences)
        self.driver.step(seq_indices)
        new = self._take()
        for row, seq_index in enumerate(seq_indices):
            self._written[seq_index] = torch.cat((self._written[seq_index], new[:, row, None]), 1)

    def _take(self) -> Tensor:
        layers = self.worker._cache.shape.layers
        taken = torch.stack([torch.cat(self._kept[layer::layers]) for layer in range(layers)])
        self._kept.clear()
        return taken

    def faults(self, drained: bool = False) -> list[str]:
        """What is wrong on the host now; the newest tokens may be missing unless all is drained."""
        found, landed = [], 0
        for seq_index, sequence in self.driver.sequences.items():
            on_host = list(self.worker._cache.on_host)
            written, length = self._written[seq_index][on_host], sequence.length
            assert written.shape[1] == length
            whole = host_rows(
                self.worker,
                sequence,
                torch.arange(len(sequence.held.host_pages) * self.worker.cache_config.page_size),
            )
            there = whole.isfinite().flatten(2).all(-1)
            landed += int(there.sum())
            due = length if drained else max(0, length - self.width)
            if not there[:, :due].all():
                found.append(f"{seq_index}: not on the host in time")
            if there[:, length:].any():
                found.append(f"{seq_index}: more on the host than was written")
            if not torch.equal(whole[:, :length][there[:, :length]], written[there[:, :length]]):
                found.append(f"{seq_index}: not what was written")
        if landed != int(self.worker._cache.host_kv.isfinite().all(-1).all(-2).all(2).sum()):
            found.append("rows elsewhere")
        return found


def life(
    worker: CacheWorker, kept: list[Tensor], lengths: list[int], most: int, steps: int
) -> tuple[list[str], Watched]:
    """Sequences join one after the other and decode on; everything is checked after every step."""
    watched, faults = Watched(worker, kept), []
    for length in lengths:
        watched.admit(length, most)
        for _ in range(watched.width + 1):
            watched.step()
            faults += watched.faults()
    for _ in range(steps):
        watched.step()
        faults += watched.faults()
    for seq_index in watched.driver.sequences:
        watched.driver.drain(seq_index)
    return faults + watched.faults(drained=True), watched


def lengths_of(worker: CacheWorker) -> list[int]:
    """A single token; one less than fills the buffer (or page), as many, one more."""
    cache_config = worker.cache_config
    full = (cache_config.lru_pages + cache_config.ring_pages) * cache_config.page_size
    edge = cache_config.page_size if cache_config.dense else full
    return [1, edge - 1, edge, edge + 1, 2 * cache_config.page_size + 1]


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("ring", first_of(*RINGS))
@pytest.mark.parametrize("selector", SETTINGS)
def test_the_host_has_the_same(path: Any, kept: list[Tensor], selector: str, ring: int, late: bool) -> None:
    """late: copies run when a forward waits for them, and not before."""
    family, top_k, buffer = SETTINGS[selector]
    worker = build(path(family), selector, top_k, buffer, ring=ring, sequences=SEQUENCES)
    if late:
        LateCopies(polls=1_000).install(worker)
    lengths = lengths_of(worker)
    # From within the buffer to beyond it, once around the ring, and over the edges of pages.
    steps = (34 if worker.cache_config.page_size > 1 else 26) if late else 3
    faults, watched = life(worker, kept, lengths, 120, steps)
    assert faults == []
    backed_up = sum(sequence.length for sequence in watched.driver.sequences.values())
    assert worker._schedule.offloaded_tokens == backed_up
    assert sum(result.offloaded_tokens for result in watched.driver.results) <= backed_up


@pytest.mark.parametrize("ring", RINGS)
def test_short_sequences_that_never_outgrow_their_buffer(path: Any, kept: list[Tensor], ring: int) -> None:
    # Host pages come in blocks of 32 tokens: the buffer holds one.
    worker = build(path("llama"), "exact", top_k=16, buffer=40, ring=ring, sequences=SEQUENCES)
    LateCopies(polls=1_000).install(worker)
    faults, watched = life(worker, kept, [1, 2, 5], 19, 3)
    assert faults == []
    assert all(worker._cache.fully_resident[seq_index] for seq_index in watched.driver.sequences)


# Controls: each must be seen.


def skipped(offload: Any) -> Any:
    return lambda steps, home, buffer: offload(steps, home[1:], buffer[1:])


def into_the_next_page(offload: Any) -> Any:
    return lambda steps, home, buffer: offload(steps, home + steps._cache.shape.page_size, buffer)


def twice(offload: Any) -> Any:
    def both(steps: CacheOps, home: Tensor, buffer: Tensor) -> None:
        offload(steps, home, buffer)
        offload(steps, home + 1, buffer)

    return both


def of_another_row(offload: Any) -> Any:
    return lambda steps, home, buffer: offload(steps, home.roll(1), buffer)


def keys_alone(offload: Any) -> Any:
    def without_values(steps: CacheOps, home: Tensor, buffer: Tensor) -> None:
        host = steps._cache.host_kv
        values = host[:, :, :, -1].clone()
        offload(steps, home, buffer)
        host[-1, :, :, -1] = values[-1]  # of the last layer

    return without_values


@pytest.mark.parametrize("mutation", [skipped, into_the_next_page, twice, of_another_row, keys_alone])
@pytest.mark.parametrize("selector", ["quest", "exact"])
@pytest.mark.exhaustive
def test_a_wrong_offload_is_seen(
    path: Any, kept: list[Tensor], selector: str, mutation: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    family, top_k, buffer = SETTINGS[selector]
    worker = build(path(family), selector, top_k, buffer)
    monkeypatch.setattr(CacheOps, "offload_step", mutation(CacheOps.offload_step))
    with torch.inference_mode():
        assert life(worker, kept, [33, 20], 60, 5)[0]


@pytest.mark.parametrize("ring", RINGS)
@pytest.mark.exhaustive
def test_a_forward_that_does_not_wait_is_seen(path: Any, kept: list[Tensor], ring: int) -> None:
    worker = build(path("llama"), "exact", ring=ring)
    LateCopies(polls=1_000, deaf_to=Queue.OFFLOAD).install(worker)
    faults, _ = life(worker, kept, [30], 60, 12)
    assert any("not what was written" in fault for fault in faults)
    assert any("in time" in fault for fault in faults)


@pytest.mark.exhaustive
def test_a_prompt_not_copied_is_seen(path: Any, kept: list[Tensor], monkeypatch: pytest.MonkeyPatch) -> None:
    def but_the_last(steps: CacheOps, staging: Tensor, slots: Tensor, host_pages: Tensor) -> None:
        offload(steps, staging, slots[:-1], host_pages)

    offload = CacheOps.offload_prompt
    monkeypatch.setattr(CacheOps, "offload_prompt", but_the_last)
    watched = Watched(build(path("llama"), "exact"), kept)
    watched.admit(30, 60)
    assert watched.faults(drained=True) == ["0: not on the host in time"]
    # Three blocks of 32 tokens.
    assert np.array_equal(watched.driver.sequences[0].held.host_pages, np.arange(96))
