"""Selecting pages and looking them up by kernels. Without a GPU they run in Triton's interpreter, on the CPU."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.attention import paged_triton
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import CacheShape
from hiscore.decoding.sparse import residency, selection, triton_cache_ops
from hiscore.decoding.sparse.cache_ops import CacheOps
from hiscore.decoding.sparse.selection import Selection
from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps
from hiscore.kernels import page_select
from tests.support.decode_cache import KnownCache, unique_contents
from tests.support.decode_kernels import DEVICE, SHAPE, assert_same, attention_shape, moved, on_device, random
from tests.support.tiers import first_of

NEWEST = 5
RESIDENCY = ("device_page_of", "host_page_of", "last_use", "hits", "misses", "buffer")


class Pair:
    """Two caches with the same history: one by plain torch, one by kernels."""

    def __init__(self, shape: CacheShape, group: int, seed: int, soft_cap: float | None, full: bool) -> None:
        self.shape, self.full = shape, full
        self.known = KnownCache(shape, unique_contents(shape), NEWEST, dtype=torch.float32)
        self.cache = on_device(self.known.cache)
        self.attention = attention_shape(shape, group, soft_cap=soft_cap)
        self.rng = np.random.default_rng(seed)
        self.ends: dict[int, int] = {}
        self.pending = 0
        self.same()

    def same(self) -> None:
        """Apply what the forward, the offload and admissions did to the kernels' cache too."""
        for name, value in vars(self.known.cache).items():
            if isinstance(value, Tensor) and name != "mass":
                getattr(self.cache, name).copy_(value)

    def join(self) -> None:
        shape = self.shape
        free = sorted(set(range(shape.max_sequences)) - set(self.ends))
        if free:
            length = int(self.rng.integers(1, shape.max_pages * shape.page_size - 4))
            end = int(self.rng.integers(length + 1, shape.max_pages * shape.page_size + 1))
            if self.known.admit(free[0], length, end, self.full and bool(self.rng.random() < 0.15)):
                self.ends[free[0]] = end

    def step(self, ops: TritonCacheOps, scores: Callable[..., Tensor] = random) -> None:
        known, shape = self.known, self.shape
        seq_indices = [seq_index for seq_index in self.ends if self.rng.random() < 0.8]
        self.rng.shuffle(seq_indices)
        rows = known.rows(seq_indices, padding=int(self.rng.integers(0, 3)))
        if not len(rows.seq_indices):
            return
        known.write(rows)
        for layer in shape.sparse_layers:
            self.same()
            given = scores(
                len(rows.seq_indices),
                self.attention.heads,
                shape.max_pages,
                seed=int(self.rng.integers(1 << 30)),
            )
            chosen = ops.select_pages(layer, given.to(DEVICE), moved(rows))
            expected = CacheOps(known.cache, self.attention).select_pages(layer, given.cpu().double(), rows)
            if chosen.lists.wait:
                chosen.lists.wait()
            width = expected.pages.shape[2]
            assert_same(chosen.pages[..., :width], expected.pages)
            assert (chosen.pages[..., width:] == -1).all()
            assert_same(chosen.lists.counts, expected.lists.counts)
            listed = chosen.lists.pages[..., :width]
            assert_same(torch.where(listed < 0, ~listed, listed), expected.lists.pages)
            self.pending += int((listed < 0).sum())
            # Sums of up to 90 shares in float32.
            torch.testing.assert_close(chosen.mass.cpu(), expected.mass, atol=1e-6, rtol=0)
            for name in (*RESIDENCY, "host_kv", "dense_kv"):
                assert_same(getattr(self.cache, name), getattr(known.cache, name))
        known.end_step(rows)
        for seq_index in [
            seq_index for seq_index in seq_indices if known.lengths[seq_index] >= self.ends[seq_index]
        ]:
            known.leave(seq_index)
            del self.ends[seq_index]


def tied(*shape: int, seed: int) -> Tensor:
    return random(*shape, seed=seed).round()


CASES = {
    "quest": (SHAPE, 3, None, random),
    "quest, capped": (SHAPE, 2, 1.5, random),
    "quest, ties": (SHAPE, 1, None, tied),
    "quest, single tokens": (
        replace(SHAPE, page_size=1, max_pages=90, host_pages=300, device_pages=200,
        lru_pages=23,
                ring_pages=5, top_pages=19), 1, None, tied,
    ),
    "dsa": (
        replace(SHAPE, index_kind="dsa", index_dim=4, kv_heads=1, kv_parts=1, head_dim=6, page_size=1,
        max_pages=90, host_pages=300,
                device_pages=200, lru_pages=23, ring_pages=5, top_pages=19), 1, None, tied,
    ),
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The few rows of these tests are swapped in beside attention, as many rows are."""
    monkeypatch.setattr(triton_cache_ops, "GEMV_MAX_ROWS", 0)


def play(case: str, steps: int, full: bool = True, beside: bool = True) -> None:
    """Sequences join, step and leave; any difference between plain torch and the kernels is an error."""
    shape, group, soft_cap, scores = CASES[case]
    pair = Pair(shape, group, 4, soft_cap, full)
    kernels = TritonCacheOps(pair.cache, pair.attention, shape.max_pages * shape.page_size, full)
    for _ in range(steps):
        pair.join()
        pair.step(kernels, scores)
    assert int(pair.cache.misses) > (3 * steps if steps >= 4 else steps)
    assert pair.pending == (int(pair.cache.misses) if beside and shape.page_size > 1 else 0)
    assert int(pair.cache.hits) > int(pair.cache.misses) / 10
    assert pair.cache.mass.cpu().tolist() == pytest.approx(pair.known.cache.mass.tolist(), rel=1e-5)


@pytest.mark.parametrize("steps", first_of(2, 8))
@pytest.mark.parametrize("case", first_of(*CASES, others=pytest.mark.slow))
def test_selection_and_residency_do_what_plain_torch_does(case: str, steps: int) -> None:
    play(case, steps)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["quest", "dsa"])
def test_scores_that_are_no_numbers_leave_the_sums_alone(case: str) -> None:
    """A sequence with NaN scores fails alone; what the others captured is still counted, by both."""
    shape, group, soft_cap, _ = CASES[case]
    pair = Pair(shape, group, 4, soft_cap, full=False)
    for _ in range(4):
        pair.join()
    pair.same()
    longest = max(pair.ends, key=lambda seq_index: pair.known.lengths[seq_index])
    rows = pair.known.rows([longest, *(seq_index for seq_index in pair.ends if seq_index != longest)])
    assert pair.known.lengths[longest] // shape.page_size + 1 > shape.top_pages
    given = random(len(rows.seq_indices), pair.attention.heads, shape.max_pages).cpu()
    given[0, 0, 0] = float("nan")
    layer = shape.sparse_layers[0]
    kernels = TritonCacheOps(pair.cache, pair.attention, shape.max_pages * shape.page_size)
    chosen = kernels.select_pages(layer, given.to(DEVICE), moved(rows))
    if chosen.lists.wait:
        chosen.lists.wait()
    plain = CacheOps(pair.known.cache, pair.attention).select_pages(layer, given, rows)
    # Sums of up to 90 shares in float32.
    torch.testing.assert_close(chosen.mass.cpu()[1:], plain.mass[1:], atol=1e-6, rtol=0)
    for mass, sums in ((chosen.mass.cpu(), pair.cache.mass.cpu()), (plain.mass, pair.known.cache.mass)):
        assert mass[0, 0].isnan()  # the control: summed without a check, everything would be NaN
        assert float(sums[0]) == pytest.approx(float(mass.nan_to_num(0.0).sum()), rel=1e-5)
        assert float(sums[0]) > 1
        assert float(sums[1]) == mass.numel()


@pytest.mark.slow
def test_in_a_chain_no_page_is_pending(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TritonCacheOps, "_swaps_beside", lambda ops, rows, width: False)
    play("quest", 2, beside=False)


def test_long_lists_of_many_rows_are_swapped_in_before_attention() -> None:
    """Of 48 rows that select, and of one among them that attends to 131,072 tokens: lists are then as long."""
    sizes = replace(SHAPE, page_size=32, kv_heads=8, max_pages=4_096)
    cache = KVCache.allocate(replace(sizes, host_pages=1, device_pages=1), torch.float32, torch.device("cpu"))
    ops = TritonCacheOps(cache, attention_shape(sizes, 4), 131_072)
    assert ops._swaps_beside(48, width=64)
    assert not ops._swaps_beside(48, width=4_096)


@pytest.mark.slow
def test_lists_are_no_longer_than_what_a_selector_chooses() -> None:
    play("quest", 2, full=False)


@pytest.mark.slow
@pytest.mark.parametrize("mutation", ["a younger victim", "ties to any", "no sink"])
@pytest.mark.exhaustive
def test_a_wrong_choice_is_noticed(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls of the test above: plain torch that does otherwise differs from the kernels."""
    case = "quest, single tokens" if mutation == "ties to any" else "quest"
    oldest, top = residency._least_recently_used, selection.select_top_pages

    def wrong(scores: Tensor, lengths: Tensor, forced: Tensor, *more: Any) -> Selection:
        if mutation == "no sink":
            return top(scores, lengths, forced & (torch.arange(scores.shape[2]) > 0), *more)
        # Of a row's equal scores, the later page is slightly the best.
        return top(scores + 1e-12 * torch.arange(scores.shape[2]), lengths, forced, *more)

    if mutation == "a younger victim":
        monkeypatch.setattr(residency, "_least_recently_used", lambda used, counts: oldest(-used, counts))
    else:
        monkeypatch.setattr(selection, "select_top_pages", wrong)
    with pytest.raises(AssertionError):
        play(case, 8)


@pytest.mark.exhaustive
def test_the_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows longer than a block: every running count carries over from one block to the next."""
    kernel = page_select.select_pages

    class Small:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **named: kernel[grid](*args, **{**named, "BLOCK": 8, "LRU_BLOCK": 4})

    monkeypatch.setattr(page_select, "select_pages", Small())
    for case in ("quest", "dsa"):
        play(case, 4)


class Late:
    """In place of a `SideStream`: its work is done when somebody waits for it, and not before."""

    def launch(self, work: Callable[[], None]) -> Callable[[], None]:
        return work


@pytest.mark.slow
@pytest.mark.parametrize("case", first_of("quest", "quest, capped"))
def test_attention_waits_for_what_is_swapped_in(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as in order, however late the copies are; other pages are in their place until they arrive."""
    monkeypatch.setattr(paged_triton, "SPLIT", 8)
    shape, group, soft_cap, _ = CASES[case]
    early, late = (Pair(shape, group, 4, soft_cap, full=False) for _ in range(2))
    ops = [
        TritonCacheOps(pair.cache, pair.attention, shape.max_pages * shape.page_size)
        for pair in (early, late)
    ]
    monkeypatch.setattr(ops[1], "_side_stream", Late())
    layer = shape.sparse_layers[0]
    without_wait = 0
    for step in range(4):
        outputs = []
        for pair, each in zip((early, late), ops, strict=True):
            pair.join()
            rows = pair.known.rows(sorted(pair.ends))
            pair.known.write(rows)
            pair.same()
            q = random(len(rows.seq_indices), pair.attention.heads, shape.head_dim, seed=step)
            given = random(len(rows.seq_indices), pair.attention.heads, shape.max_pages, seed=step)
            lists = each.select_pages(layer, given, moved(rows)).lists
            if pair is late:
                unknown = each.attend(layer, q, replace(lists, wait=lambda: None), moved(rows))
            outputs.append(each.attend(layer, q, lists, moved(rows)))
        assert_same(*outputs)
        assert not outputs[0].isnan().any()
        without_wait += not torch.equal(unknown, outputs[0])
    assert int(late.cache.misses) > 0
    assert without_wait  # the control
