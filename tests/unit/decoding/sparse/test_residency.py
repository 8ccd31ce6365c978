"""LRU and copies against a plain Python model, with every byte checked after every step."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.kv_cache.step_batch import StepBatch
from hiscore.decoding.sparse import residency
from hiscore.decoding.sparse.residency import swap_in
from hiscore.decoding.sparse.selection import Selection
from tests.support.decode_cache import KnownCache, unique_contents
from tests.support.decode_kernels import SHAPE as SHAPE_OF_KERNELS
from tests.support.tiers import first_of

NEWEST = 5
SHAPE = replace(SHAPE_OF_KERNELS, kv_heads=3, head_dim=2)


class LruModel:
    """The buffer of a sequence, layer and head: each entry holds a page or nothing, and when it was last used."""

    def __init__(self, entries: int, seeds: list[int], length: int) -> None:
        self.pages: list[int | None] = [*seeds, *[None] * (entries - len(seeds))]
        self.last_use = [2 * (length - 1)] * len(seeds) + [-1] * (entries - len(seeds))

    def step(self, pages: list[int], position: int) -> int:
        """Make these pages (none of the ring's) resident; returns how many were not."""
        hits = [entry for entry, page in enumerate(self.pages) if page in pages]
        missing = sorted(set(pages) - set(self.pages))
        others = [entry for entry in range(len(self.pages)) if entry not in hits]
        others.sort(key=lambda entry: (self.last_use[entry], entry))
        for page, entry in zip(missing, sorted(others[: len(missing)]), strict=True):
            self.pages[entry], self.last_use[entry] = page, 2 * position
        for entry in hits:
            self.last_use[entry] = 2 * position + 1
        return len(missing)


class Play:
    """Random sequences that select random pages, compared with a model of each (seq_index, layer, head)."""

    def __init__(self, shape: CacheShape, seed: int, newest: int = NEWEST) -> None:
        self.shape = shape
        self.known = KnownCache(shape, unique_contents(shape), newest)
        self.rng = np.random.default_rng(seed)
        self.models: dict[tuple[int, int, int], LruModel] = {}
        self.ends: dict[int, int] = {}
        self.misses = self.selected = self.joined = 0

    def join(self) -> None:
        shape = self.shape
        free = sorted(set(range(shape.max_sequences)) - set(self.ends))
        if not free:
            return
        seq_index = int(self.rng.choice(free))
        length = int(self.rng.integers(1, shape.max_pages * shape.page_size - 4))
        end = int(self.rng.integers(length + 1, shape.max_pages * shape.page_size + 1))
        full = bool(self.rng.random() < 0.1)
        if not self.known.admit(seq_index, length, end, full):
            return
        self.joined += 1
        self.ends[seq_index] = end
        if not self.known.cache.fully_resident[seq_index]:
            ring = max(0, length // shape.page_size - shape.ring_pages + 1)
            seeds = ([0] if ring else []) + list(range(max(1, ring - shape.lru_pages + 1), ring))
            for layer in range(len(shape.sparse_layers)):
                for head in range(shape.kv_heads):
                    self.models[seq_index, layer, head] = LruModel(shape.lru_pages, seeds, length)

    def leave(self, seq_index: int) -> None:
        self.known.leave(seq_index)
        del self.ends[seq_index]
        self.models = {key: model for key, model in self.models.items() if key[0] != seq_index}

    def step(self) -> None:
        seq_indices = [seq_index for seq_index in self.ends if self.rng.random() < 0.8]
        self.rng.shuffle(seq_indices)
        rows = self.known.rows(seq_indices, padding=int(self.rng.integers(0, 3)))
        self.known.write(rows)
        for at, layer in enumerate(self.shape.sparse_layers):
            pages = [[self._pick(seq_index) for _ in range(self.shape.kv_heads)] for seq_index in seq_indices]
            selection = as_selection(pages, self.shape, len(rows.seq_indices))
            resident = swap_in(self.known.cache, layer, selection, rows)
            self._check(at, layer, seq_indices, pages, resident)
        self.known.end_step(rows)
        for seq_index in [
            seq_index for seq_index in seq_indices if self.known.lengths[seq_index] >= self.ends[seq_index]
        ]:
            self.leave(seq_index)

    def _pick(self, seq_index: int) -> list[int]:
        newest = self.known.lengths[seq_index] // self.shape.page_size
        at_most = (
            newest + 1
            if self.known.cache.full_attention[seq_index]
            else min(newest + 1, self.shape.top_pages)
        )
        # Nearby pages more often than others, so that there are hits and misses.
        weights = 1.0 / (1 + np.abs(np.arange(newest + 1) - newest * self.rng.random()))
        count = int(self.rng.integers(1, at_most + 1))
        pages = self.rng.choice(newest + 1, count, replace=False, p=weights / weights.sum())
        return sorted(pages.tolist())

    def _check(
        self,
        at: int,
        layer: int,
        seq_indices: list[int],
        pages: list[list[list[int]]],
        resident: torch.Tensor,
    ) -> None:
        shape, cache = self.shape, self.known.cache
        assert (resident[len(seq_indices) :] == 0).all()
        buffer = cache.tokens(layer).unflatten(0, (-1, shape.page_size))
        for row, seq_index in enumerate(seq_indices):
            host_pages, device_pages = self.known.pages[seq_index]
            length = self.known.lengths[seq_index] + 1
            for head in range(shape.kv_heads):
                chosen = pages[row][head]
                assert set(resident[row, head, : len(chosen)].tolist()) <= set(device_pages.tolist())
                for page, device_page in zip(chosen, resident[row, head].tolist(), strict=False):
                    first, last = page * shape.page_size, min((page + 1) * shape.page_size, length)
                    right = self.known.contents(
                        self.known.number[seq_index], layer, torch.arange(first, last)
                    )
                    assert torch.equal(buffer[device_page, : last - first, :, head], right[:, :, head])
                self.selected += len(chosen)
                if cache.fully_resident[seq_index]:
                    continue
                ring = range((length - 1) // shape.page_size - shape.ring_pages + 1, length)
                model = self.models[seq_index, at, head]
                self.misses += model.step([page for page in chosen if page not in ring], length - 1)
                lru = device_pages[: shape.lru_pages]
                host_page_of = [-1 if page is None else int(host_pages[page]) for page in model.pages]
                assert cache.host_page_of[at, lru, head].tolist() == host_page_of
                assert cache.last_use[at, lru, head].tolist() == model.last_use
                # The two tables are inverses, and nothing else of the sequence counts as resident.
                inverse = {
                    page: int(device_page)
                    for device_page, page in zip(lru, host_page_of, strict=True)
                    if page >= 0
                }
                device_page_of = cache.device_page_of[at, host_pages, head].tolist()
                assert device_page_of == [inverse.get(page, -1) for page in host_pages.tolist()]
        assert int(cache.misses) == self.misses
        assert int(cache.hits) == self.selected - self.misses


def as_selection(pages: list[list[list[int]]], shape: CacheShape, rows: int) -> Selection:
    width = max([shape.top_pages, *(len(chosen) for of_row in pages for chosen in of_row)])
    out = torch.full((rows, shape.kv_heads, width), -1, dtype=torch.int32)
    for row, of_row in enumerate(pages):
        for head, chosen in enumerate(of_row):
            out[row, head, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
    return Selection(out, (out >= 0).sum(-1).int(), torch.zeros(out.shape[:2]))


def play(steps: int, seed: int = 3) -> Play:
    game = Play(SHAPE, seed)
    for _ in range(steps):
        if game.rng.random() < 0.3:
            game.join()
        if game.ends and game.rng.random() < 0.02:
            game.leave(int(game.rng.choice(list(game.ends))))
        game.step()
    return game


@pytest.mark.parametrize("steps", first_of(60, 1_000))
def test_steps_match_a_plain_model(steps: int) -> None:
    game = play(steps)
    assert game.joined > steps / 20
    assert steps < game.misses < game.selected


def youngest(right: Any) -> Any:
    return lambda last_use, counts: right(-last_use, counts)


def in_another_order(right: Any) -> Any:
    return lambda last_use, counts: last_use.argsort(dim=-1, stable=True)


def ties_to_the_higher_index(right: Any) -> Any:
    def victims(last_use: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        most = last_use.shape[-1] - 1
        found = most - right(last_use.flip(-1), counts)
        return found.masked_fill(found < 0, most + 1).sort(dim=-1).values

    return victims


def of_the_next_head(right: Any) -> Any:
    return lambda cache, layer, pages, heads, into: right(
        cache, layer, pages, (heads + 1) % SHAPE.kv_heads, into
    )


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        *(("_least_recently_used", each) for each in (youngest, in_another_order, ties_to_the_higher_index)),
        ("copy_pages", of_the_next_head),
    ],
)
def test_control_a_wrong_swap_is_noticed(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, name, wrong(getattr(residency, name)))
    with pytest.raises(AssertionError):
        play(200)


@pytest.mark.exhaustive
def test_a_ring_too_short_for_the_offload_is_noticed() -> None:
    """One page fewer, and a page leaves the ring before the offload of its tokens has completed."""
    short = replace(SHAPE, ring_pages=1)

    def play_with(newest: int) -> None:
        game = Play(short, 3, newest)
        for _ in range(300):
            game.join()
            game.step()

    play_with(1)
    with pytest.raises(AssertionError):
        play_with(2)


def test_padding_alone_changes_nothing() -> None:
    cache = KVCache.allocate(SHAPE, torch.float32, torch.device("cpu"))
    before = {name: getattr(cache, name).clone() for name in SHAPE.tensors(torch.float32)}
    rows = StepBatch(torch.full((3,), -1, dtype=torch.int32), torch.zeros(3, dtype=torch.int32))
    resident = swap_in(cache, 0, as_selection([], SHAPE, 3), rows)
    assert not resident.any()
    assert all(torch.equal(getattr(cache, name), tensor) for name, tensor in before.items())


@pytest.mark.parametrize(("full", "buffer"), [(False, 8), (True, SHAPE.buffer_pages)])
def test_a_buffer_of_another_size_is_refused(full: bool, buffer: int) -> None:
    """A sequence that attends to everything must be resident as a whole."""
    known = KnownCache(SHAPE, unique_contents(SHAPE), NEWEST)
    with pytest.raises(ValueError, match=f"device_pages has {buffer} pages for a sequence of 20"):
        known.admit(0, 10, 80, full=full, buffer=buffer)
