"""The kernels of a decode step against plain torch. Without a GPU they run in Triton's interpreter, on the CPU."""

import copy
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="the Triton language is not installed")

import triton
import triton.language as tl

from hiscore.attention.base import AttentionShape
from hiscore.attention.paged_torch import capped
from hiscore.decoding import kernel_steps
from hiscore.decoding.cache import Cache, CacheShape, DecodeRows
from hiscore.decoding.kernel_steps import KernelSteps
from hiscore.decoding.residency import newest_slots, swap_in
from hiscore.decoding.selection import Selection
from hiscore.decoding.steps import PageLists
from hiscore.decoding.torch_steps import TorchSteps
from hiscore.kernels import residency, top_k
from tests.support.decode_cache import KnownCache, unique_contents

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"

SHAPE = CacheShape(
    layers=3, heads=2, parts=2, width=4, page=4, streams=6, max_pages=24, host_pages=80, device_pages=48,
    lru_pages=7, ring_pages=2, top_pages=5, dense_layers=frozenset({1}), index="bounds",
)  # fmt: skip
NEWEST = 5


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def attention_shape(cache: CacheShape, group: int, **changed: object) -> AttentionShape:
    shape = AttentionShape(
        cache.heads * group, cache.heads, cache.width, 0.4, None, tuple([None] * cache.layers)
    )
    return replace(shape, **changed)  # type: ignore[arg-type]


def on_device(cache: Cache) -> Cache:
    """A copy of a cache for the kernels."""
    moved = copy.deepcopy(cache)
    for name, value in vars(moved).items():
        if isinstance(value, Tensor):
            pinned = name == "host" and DEVICE == "cuda"
            setattr(moved, name, value.pin_memory() if pinned else value.to(DEVICE))
    return moved


def rows_of(slots: list[int], positions: list[int]) -> DecodeRows:
    return DecodeRows(*(torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (slots, positions)))


def moved(rows: DecodeRows) -> DecodeRows:
    return DecodeRows(rows.slots.to(DEVICE), rows.positions.to(DEVICE))


def assert_same(found: Tensor, expected: Tensor) -> None:
    """The same bits; poison too."""
    found, expected = found.cpu().contiguous(), expected.cpu().contiguous()
    if found.is_floating_point():
        found, expected = found.view(torch.uint8), expected.view(torch.uint8)
    assert torch.equal(found, expected)


# The k largest.


@triton.jit
def _top_k(values, keys, out, taken_out, count, k, BLOCK: tl.constexpr, EQUALS: tl.constexpr):
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        key = top_k.float_key(tl.load(values + place, mask=place < count, other=0.0))
        tl.store(keys + place, key, mask=place < count)
    tl.debug_barrier()
    low, allowed = top_k.kth_largest(keys, count, k, BLOCK)
    allowed += EQUALS
    ties = count * 0
    taken = count * 0
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        key = tl.load(keys + place, mask=place < count, other=0)
        chosen, rank, ties, taken = top_k.choose(key, place < count, low, allowed, ties, taken)
        tl.store(out + rank, place, mask=chosen)
    tl.store(taken_out, taken)


def run_top_k(values: Tensor, k: int, block: int = 16, equals: int = 0) -> list[int]:
    keys = torch.zeros(len(values), dtype=torch.uint32, device=DEVICE)
    out = torch.full((len(values),), -7, dtype=torch.int32, device=DEVICE)
    taken = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    _top_k[(1,)](values.to(DEVICE), keys, out, taken, len(values), k, BLOCK=block, EQUALS=equals)
    assert (out[int(taken) :] == -7).all()
    return out[: int(taken)].tolist()


def sorted_top_k(values: Tensor, k: int) -> list[int]:
    return sorted(sorted(range(len(values)), key=lambda at: (-float(values[at]), at))[:k])


@pytest.mark.parametrize("make", [
    lambda x: x, lambda x: x.round(), lambda x: x * 1e-42, lambda x: x * 0, lambda x: x * -0.0,
    lambda x: (x * 40).round() * float("inf"), lambda x: x.abs() * 1e38, lambda x: -x.abs(),
], ids=["any", "ties", "denormal", "zeros", "both zeros", "infinite", "great", "negative"])  # fmt: skip
def test_the_k_largest_are_those_of_a_sort_with_ties_to_the_lower_place(
    make: Callable[[Tensor], Tensor],
) -> None:
    rng = np.random.default_rng(0)
    for seed in range(5):
        count = int(rng.integers(1, 70))
        values = make(random(count, seed=seed).cpu()).nan_to_num(nan=0.0, posinf=np.inf, neginf=-np.inf)
        for k in {1, int(rng.integers(1, count + 1)), count}:
            assert run_top_k(values, k) == sorted_top_k(values, k)
    # The control: one more of the equals is one too many.
    assert run_top_k(torch.zeros(20), 3, equals=1) != sorted_top_k(torch.zeros(20), 3)


def test_nan_among_scores_changes_how_many_are_chosen_by_none() -> None:
    values = random(40, seed=3)
    values[::7] = float("nan")
    values[1::7] = -float("nan")
    assert len(set(run_top_k(values, 11))) == 11


# Selection.


def weights_of(scores: Tensor, soft_cap: float | None) -> Tensor:
    """float64 [H, n] from scores [H, group, n]."""
    return capped(scores.double(), soft_cap).softmax(-1).mean(1)


def plain_choice(weights: Tensor, budget: int, forced: set[int]) -> list[int]:
    order = sorted(range(len(weights)), key=lambda p: (p not in forced, -float(weights[p]), p))
    return sorted(order[:budget])


def plain_selection(
    cache: Cache, scores: Tensor, rows: DecodeRows, soft_cap: float | None = None
) -> Selection:
    """The selection by its definition, from scores [R, heads, pages]."""
    shape = cache.shape
    own = shape.index == "dsa"
    pages, mass = [], torch.zeros(len(scores), shape.heads)
    for row, (slot, position) in enumerate(zip(rows.slots.tolist(), rows.positions.tolist(), strict=True)):
        count = position // shape.page + 1 if slot >= 0 else 0
        budget = count if slot >= 0 and cache.full[slot] else min(count, shape.top_pages)
        newest = {"bounds": shape.ring_pages, "keys": 1, "dsa": 0}[shape.index]
        forced = set() if own else {0, *range(count - newest, count)}
        of_row = []
        for head, group in enumerate(scores[row, :, :count].cpu().unflatten(0, (shape.heads, -1))):
            weights = group[0] if own else weights_of(group[None], soft_cap)[0]
            of_row.append(plain_choice(weights, budget, forced) if count else [])
            mass[row, head] = float(weights[of_row[-1]].sum()) if count else 0.0
        pages.append(of_row)
    width = max([shape.top_pages, *(len(chosen) for of_row in pages for chosen in of_row)])
    out = torch.full((len(pages), shape.heads, width), -1, dtype=torch.int32)
    for row, of_row in enumerate(pages):
        for head, chosen in enumerate(of_row):
            out[row, head, : len(chosen)] = torch.tensor(chosen, dtype=torch.int32)
    return Selection(out, (out >= 0).sum(-1).int(), mass)


class Pair:
    """Two caches through the same life: one by plain torch, one by kernels."""

    def __init__(self, shape: CacheShape, group: int, seed: int, soft_cap: float | None = None) -> None:
        self.shape, self.soft_cap = shape, soft_cap
        self.known = KnownCache(shape, unique_contents(shape), NEWEST, dtype=torch.float32)
        self.cache = on_device(self.known.cache)
        self.attention = attention_shape(shape, group, soft_cap=soft_cap)
        self.rng = np.random.default_rng(seed)
        self.ends: dict[int, int] = {}
        self.mass = [0.0, 0.0]
        self.same()

    def same(self) -> None:
        """Hand what the forward, the backup and admissions did to the kernels' cache too."""
        for name, value in vars(self.known.cache).items():
            if isinstance(value, Tensor) and name != "mass":
                getattr(self.cache, name).copy_(value)

    def join(self) -> None:
        shape = self.shape
        free = sorted(set(range(shape.streams)) - set(self.ends))
        if free:
            length = int(self.rng.integers(1, shape.max_pages * shape.page - 4))
            end = int(self.rng.integers(length + 1, shape.max_pages * shape.page + 1))
            if self.known.admit(free[0], length, end, full=bool(self.rng.random() < 0.15)):
                self.ends[free[0]] = end

    def step(self, steps: KernelSteps, scores: Callable[..., Tensor] = random) -> None:
        known, shape = self.known, self.shape
        slots = [slot for slot in self.ends if self.rng.random() < 0.8]
        self.rng.shuffle(slots)
        rows = known.rows(slots, padding=int(self.rng.integers(0, 3)))
        if not len(rows.slots):
            return
        known.write(rows)
        for layer in shape.sparse_layers:
            self.same()
            given = scores(
                len(rows.slots), self.attention.heads, shape.max_pages, seed=int(self.rng.integers(1 << 30))
            )
            chosen = steps.choose(layer, given.to(DEVICE), moved(rows))
            selection = plain_selection(known.cache, given, rows, self.soft_cap)
            width = selection.pages.shape[2]
            places = swap_in(known.cache, layer, selection, rows)
            assert_same(chosen.pages[..., :width], selection.pages)
            assert (chosen.pages[..., width:] == -1).all()
            assert_same(chosen.lists.counts, selection.counts)
            assert_same(chosen.lists.pages[..., :width], places)
            if shape.index != "dsa":
                self.mass[0] += float(selection.mass.sum())
                self.mass[1] += len(slots) * shape.heads
                torch.testing.assert_close(chosen.mass.cpu(), selection.mass, atol=1e-6, rtol=0)
            for name in ("where", "holds", "used", "hits", "misses", "buffer", "host", "home"):
                assert_same(getattr(self.cache, name), getattr(known.cache, name))
        known.end_step(rows)
        for slot in [slot for slot in slots if known.lengths[slot] >= self.ends[slot]]:
            known.leave(slot)
            del self.ends[slot]


def tied(*shape: int, seed: int) -> Tensor:
    return random(*shape, seed=seed).round()


CASES = {
    "quest": (SHAPE, 3, None, random),
    "quest, capped": (SHAPE, 2, 1.5, random),
    "quest, ties": (SHAPE, 1, None, tied),
    "exact": (
        replace(SHAPE, index="keys", page=1, max_pages=90, host_pages=300, device_pages=200, lru_pages=23,
                ring_pages=5, top_pages=19), 1, None, tied,
    ),
    "dsa": (
        replace(SHAPE, index="dsa", index_width=4, heads=1, parts=1, width=6, page=1, max_pages=90, host_pages=300,
                device_pages=200, lru_pages=23, ring_pages=5, top_pages=19), 1, None, tied,
    ),
}  # fmt: skip


def play(case: str, steps: int) -> None:
    """Streams join, step and leave; whatever differs between plain torch and the kernels is an error."""
    shape, group, soft_cap, scores = CASES[case]
    pair = Pair(shape, group, seed=4, soft_cap=soft_cap)
    kernels = KernelSteps(pair.cache, pair.attention, shape.max_pages * shape.page, full=True)
    for _ in range(steps):
        pair.join()
        pair.step(kernels, scores)
    assert int(pair.cache.misses) > 3 * steps
    assert int(pair.cache.hits) > int(pair.cache.misses) / 10
    assert pair.cache.mass.cpu().tolist() == pytest.approx(pair.mass, rel=1e-5)


@pytest.mark.parametrize("case", CASES)
def test_selection_and_residency_do_what_plain_torch_does(case: str) -> None:
    play(case, 8)


@pytest.mark.parametrize("mutation", ["a younger victim", "ties to any", "no sink"])
def test_a_wrong_choice_is_noticed(mutation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The controls of the test above: plain torch that does otherwise differs from the kernels."""
    import hiscore.decoding.residency as plain

    case = "exact" if mutation == "ties to any" else "quest"
    if mutation == "a younger victim":
        oldest = plain._oldest
        monkeypatch.setattr(plain, "_oldest", lambda used, counts: oldest(-used, counts))
    else:
        name = "plain_choice"
        right = globals()[name]

        def wrong(weights: Tensor, budget: int, forced: set[int]) -> list[int]:
            if mutation == "no sink":
                return right(weights, budget, forced - {0})
            last = len(weights) - 1
            flipped = right(weights.flip(0), budget, {last - page for page in forced})
            return sorted(last - page for page in flipped)

        monkeypatch.setitem(globals(), name, wrong)
    with pytest.raises(AssertionError):
        play(case, 8)


def test_a_block_of_places_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows longer than a block: every running number goes on from one block to the next."""
    kernel = residency.select_and_place

    class Small:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return lambda *args, **named: kernel[grid](*args, **{**named, "BLOCK": 8})

    monkeypatch.setattr(residency, "select_and_place", Small())
    for case in ("quest", "dsa"):
        play(case, 4)


# Scores and the index.


@pytest.mark.parametrize(("index", "page"), [("bounds", 4), ("keys", 1)])
def test_scores_and_the_index_equal_plain_torch(index: str, page: int) -> None:
    shape = replace(SHAPE, index=index, page=page, width=24, max_pages=24, top_pages=3, lru_pages=3)
    sizes = attention_shape(shape, 3)
    plain = Cache.allocate(shape, torch.float32, torch.device("cpu"))
    plain.index.fill_(float("nan"))
    tables = np.random.default_rng(0).permuted(np.tile(np.arange(80), (6, 1)), axis=1)[:, :24]
    plain.host_table.copy_(torch.from_numpy(tables))
    cache = on_device(plain)
    steps, reference = KernelSteps(cache, sizes, shape.max_pages * page), TorchSteps(plain, sizes)
    # A prompt of 13 tokens, all at once; then tokens one by one, with padding.
    slot, length = 2, 13
    pages = plain.host_table[slot, : -(-length // page)]
    home = pages[torch.arange(length) // page] * page + torch.arange(length) % page
    staging = random(3, 40, 2, shape.heads, shape.width, seed=1)
    slots = torch.from_numpy(np.random.default_rng(1).permutation(40)[:length]).int()
    steps.index_prompt(staging, slots.to(DEVICE), pages.to(DEVICE), home.to(DEVICE))
    reference.index_prompt(staging.cpu(), slots, pages, home)
    assert_same(cache.index, plain.index)
    last = length + 5
    for layer in shape.sparse_layers:
        for position in range(length, last + 1):
            # Keys stand between queries and values.
            new = random(2, shape.heads * 5, shape.width, seed=position)[:, shape.heads * 3 :][
                :, : shape.heads
            ]
            at = int(plain.host_table[slot, position // page]) * page + position % page
            at = torch.tensor([-1, at], dtype=torch.int32)
            steps.write_index(layer, new, at.to(DEVICE))
            reference.write_index(layer, new.cpu(), at)
        assert_same(cache.index, plain.index)
        rows = rows_of([-1, slot, slot], [0, last, length])
        q = random(3, shape.heads * 5, shape.width, seed=layer)[:, : sizes.heads]
        found = steps.scores(layer, q, rows).cpu()
        expected = reference.scores(layer, q.cpu(), DecodeRows(rows.slots.cpu(), rows.positions.cpu()))
        for row, at in ((1, last), (2, length)):
            count = at // page + 1
            assert count > shape.top_pages
            assert expected[row, :, :count].abs().min() > 0
            # float32 sums of 24 products of about 1: 1e-5 is ten times their rounding.
            torch.testing.assert_close(found[row, :, :count], expected[row, :, :count], atol=1e-5, rtol=0)


def test_an_indexers_scores_equal_plain_torch() -> None:
    shape = replace(CASES["dsa"][0], index_width=24)
    plain = Cache.allocate(shape, torch.float32, torch.device("cpu"))
    plain.index.copy_(random(*plain.index.shape).cpu())
    plain.host_table.copy_(torch.arange(6 * 90).view(6, 90) * 7 % 300)
    cache, sizes = on_device(plain), attention_shape(shape, 2)
    steps, reference = KernelSteps(cache, sizes, 90), TorchSteps(plain, sizes)
    key, at = random(2, 24, seed=3), torch.tensor([-1, int(plain.host_table[1, 88])], dtype=torch.int32)
    steps.write_index(2, key, at.to(DEVICE))
    reference.write_index(2, key.cpu(), at)
    assert_same(cache.index, plain.index)
    q, gates = random(3, 5, 24, seed=1), random(3, 5, seed=2)
    rows = rows_of([1, -1, 4], [88, 3, 30])
    found = steps.indexer_scores(2, q, gates, rows).cpu()
    on_cpu = DecodeRows(rows.slots.cpu(), rows.positions.cpu())
    expected = reference.indexer_scores(2, q.cpu(), gates.cpu(), on_cpu)
    for row, count in ((0, 89), (2, 31)):
        torch.testing.assert_close(found[row, 0, :count], expected[row, 0, :count], atol=5e-5, rtol=0)


# Attention.


def filled(shape: CacheShape, seed: int = 0) -> Cache:
    """A cache of random tokens whose streams all own different, shuffled pages; the rest is poison."""
    rng = np.random.default_rng(seed)
    cache = Cache.allocate(shape, torch.float32, torch.device("cpu"))
    for tensor in (cache.home, cache.buffer):
        tensor.copy_(random(*tensor.shape, seed=seed).cpu())
    table = rng.permutation(shape.host_pages)[: shape.streams * shape.max_pages]
    cache.host_table[:, : shape.max_pages].copy_(torch.from_numpy(table.reshape(shape.streams, -1)))
    return on_device(cache)


def in_float64(cache: Cache) -> Cache:
    plain = copy.deepcopy(cache)
    for name, value in vars(plain).items():
        if isinstance(value, Tensor):
            setattr(plain, name, value.cpu().double() if value.is_floating_point() else value.cpu())
    return plain


ATTENTION = CacheShape(
    layers=2, heads=2, parts=2, width=24, page=8, streams=3, max_pages=20, host_pages=60, device_pages=60,
    lru_pages=20, ring_pages=2, top_pages=20, dense_layers=frozenset({0}), index="bounds",
)  # fmt: skip


@pytest.mark.parametrize("window", [None, 1, 50])
@pytest.mark.parametrize(("group", "soft_cap"), [(3, None), (1, 1.5)])
def test_dense_attention_equals_plain_torch(
    window: int | None, group: int, soft_cap: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel_steps, "SPLIT", 32)
    cache = filled(ATTENTION)
    shape = attention_shape(ATTENTION, group, soft_cap=soft_cap, windows=(window, None))
    steps = KernelSteps(cache, shape, 160)
    rows = rows_of([1, -1, 0, 2, 1], [159, 7, 0, 63, 64])
    # Nothing beyond a row's position may be read.
    for slot, last in ((0, 0), (2, 63)):
        beyond = torch.arange(last + 1, 160, device=DEVICE)
        at = cache.host_table[slot, beyond // 8].long() * 8 + beyond % 8
        cache.home[:, at] = float("nan")
    q = random(5, shape.heads + 2 * shape.kv_heads, 24, seed=1)[:, : shape.heads]
    found = steps.attend(0, q, steps.everything(rows), rows)
    plain, on_cpu = in_float64(cache), DecodeRows(rows.slots.cpu(), rows.positions.cpu())
    reference = TorchSteps(plain, shape)
    expected = reference.attend(0, q.cpu().double(), reference.everything(on_cpu), on_cpu)
    real = rows.slots.cpu() >= 0
    # float32 means of at most 160 values of about 1: 1e-5 is ten times their rounding.
    torch.testing.assert_close(found.cpu().double()[real], expected[real], atol=1e-5, rtol=0)
    # One token more or less shows.
    shorter = steps.attend(0, q, steps.everything(rows), rows_of([1, -1, 0, 2, 1], [158, 7, 0, 62, 63]))
    assert (found - shorter)[[0, 3, 4]].abs().amax((1, 2)).min() > 1e-4


def test_where_pages_lie_and_who_else_is_there_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel_steps, "SPLIT", 32)
    cache = filled(ATTENTION)
    shape = attention_shape(ATTENTION, 3)
    steps = KernelSteps(cache, shape, 160)
    rows = rows_of([1, 0], [157, 100])
    q = random(2, shape.heads, 24, seed=1)
    dense = steps.attend(0, q, steps.everything(rows), rows)
    # The same tokens in the buffer, elsewhere and differently for each head, by lists instead of a table.
    rng = np.random.default_rng(2)
    pages = (
        torch.stack([torch.from_numpy(rng.permutation(60)[:20]) for _ in range(4)]).view(2, 2, 20).to(DEVICE)
    )
    home, buffer = cache.home[0].unflatten(0, (-1, 8)), cache.buffer[0].unflatten(0, (-1, 8))
    buffer.fill_(float("nan"))
    pages[1, 0] = torch.tensor([x for x in range(60) if x not in pages[0, 0].tolist()][:20])
    pages[1, 1] = torch.tensor([x for x in range(60) if x not in pages[0, 1].tolist()][:20])
    for row, slot in enumerate((1, 0)):
        for head in range(2):
            buffer[pages[row, head], :, :, head] = home[cache.host_table[slot, :20].long(), :, :, head]
    counts = torch.tensor([[20, 20], [13, 13]], dtype=torch.int32, device=DEVICE)
    lists = PageLists(pages.int().contiguous(), counts)
    assert_same(steps.attend(1, q, lists, rows), dense)
    # Other rows, and grids for shorter streams.
    short = KernelSteps(cache, shape, 104)
    alone = rows_of([0], [100])
    assert_same(short.attend(0, q[1:], short.everything(alone), alone)[0], dense[1])
    # The control: the same set in another order has other bits.
    lists.pages[:, :, :12] = lists.pages[:, :, :12].flip(2)
    turned = steps.attend(1, q, lists, rows)
    torch.testing.assert_close(turned, dense, atol=1e-5, rtol=0)
    assert not torch.equal(turned, dense)


def test_a_latent_is_key_and_value_at_once() -> None:
    shape = CacheShape(
        layers=1, heads=1, parts=1, width=40, page=1, streams=2, max_pages=300, host_pages=600, device_pages=600,
        lru_pages=290, ring_pages=2, top_pages=280, index="dsa", index_width=4,
    )  # fmt: skip
    cache = filled(shape)
    sizes = AttentionShape(36, 1, 40, 0.2, None, (None,))
    steps = KernelSteps(cache, sizes, 300, value_width=24)
    rows = rows_of([1, -1, 0], [299, 0, 99])
    counts = torch.tensor([[280], [0], [100]], dtype=torch.int32, device=DEVICE)
    places = torch.randperm(600, generator=torch.Generator().manual_seed(1))[:560].view(2, 1, 280)
    places = torch.cat((places[:1], places[:1], places[1:])).int().to(DEVICE)
    q = random(3, 36, 40, seed=2)
    found = steps.attend(0, q, PageLists(places, counts), rows)
    reference = TorchSteps(in_float64(cache), sizes, value_width=24)
    on_cpu = DecodeRows(rows.slots.cpu(), rows.positions.cpu())
    expected = reference.attend(0, q.cpu().double(), PageLists(places.cpu(), counts.cpu()), on_cpu)
    torch.testing.assert_close(found[[0, 2]].cpu().double(), expected[[0, 2]], atol=1e-5, rtol=0)


# Copies.


def test_a_steps_tokens_reach_the_host_and_padding_writes_nothing() -> None:
    known = KnownCache(SHAPE, unique_contents(SHAPE), NEWEST, dtype=torch.float32)
    for slot, length in ((0, 30), (3, 3), (5, 71)):
        assert known.admit(slot, length, length + 9)
    rows = known.rows([5, 0, 3], padding=2)
    known.write(rows)
    cache = on_device(known.cache)
    steps = KernelSteps(cache, attention_shape(SHAPE, 1), 96)
    home, buffer = newest_slots(known.cache, rows)
    before = known.cache.host.clone()
    steps.back_up(home.to(DEVICE), buffer.to(DEVICE))
    for slot, length in known.lengths.items():
        known._to_host(slot, torch.tensor([length]))
    assert_same(cache.host, known.cache.host)
    assert not torch.equal(before.nan_to_num(-1.0), known.cache.host.nan_to_num(-1.0))


@pytest.mark.parametrize("length", [1, 7, 8, 9])
def test_a_prompt_goes_to_the_host_home_and_buffer_and_back(length: int) -> None:
    cache = on_device(Cache.allocate(SHAPE, torch.float32, torch.device("cpu")))
    for tensor in (cache.host, cache.home, cache.buffer):
        tensor.fill_(-1.0)
    steps = KernelSteps(cache, attention_shape(SHAPE, 1), 96)
    staging = torch.arange(3 * 32 * 16, dtype=torch.float32, device=DEVICE).view(3, 32, 2, 2, 4)
    rng = np.random.default_rng(length)
    slots = torch.from_numpy(rng.permutation(32)[:length]).int().to(DEVICE)
    pages = torch.from_numpy(rng.permutation(80)[: -(-length // 4)]).int().to(DEVICE)
    each = torch.arange(length, device=DEVICE)
    home = pages.long()[each // 4] * 4 + each % 4
    steps.back_up_prompt(staging, slots, pages)
    steps.settle(staging, slots, home.int())
    steps.seed(staging, slots, (home % 48).int())

    plain = Cache.allocate(SHAPE, torch.float32, torch.device("cpu"))
    for tensor in (plain.host, plain.home, plain.buffer):
        tensor.fill_(-1.0)
    reference = TorchSteps(plain, attention_shape(SHAPE, 1))
    reference.back_up_prompt(staging.cpu(), slots.cpu(), pages.cpu())
    reference.settle(staging.cpu(), slots.cpu(), home.cpu())
    reference.seed(staging.cpu(), slots.cpu(), home.cpu() % 48)
    for name in ("host", "home", "buffer"):
        assert_same(getattr(cache, name), getattr(plain, name))
        assert (getattr(plain, name) >= 0).any()

    other = torch.full_like(staging, -2.0)
    elsewhere = torch.from_numpy(rng.permutation(32)[:length]).int().to(DEVICE)
    steps.restore_prompt(other, elsewhere, pages)
    right = torch.full_like(staging, -2.0)
    right[:, elsewhere.long()] = staging[:, slots.long()]
    assert_same(other, right)


def test_heads_apart_are_refused() -> None:
    cache = filled(ATTENTION)
    steps = KernelSteps(cache, attention_shape(ATTENTION, 1), 160)
    rows = rows_of([0], [5])
    with pytest.raises(ValueError, match="contiguous"):
        steps.attend(0, random(1, 24, 2).transpose(1, 2), steps.everything(rows), rows)
