"""Recurrent layers by kernels equal those in PyTorch, over forwards and batches that hand states on."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from hiscore.attention.metadata import Forward
from hiscore.recurrence import chunk_tables
from hiscore.recurrence.chunk_tables import NOWHERE, ROWS_OF_CHUNK, ChunkTables, table_size
from hiscore.recurrence.gated_delta_net import RecurrentShape, RecurrentWeights
from hiscore.recurrence.metadata import (
    CHUNK,
    FIRST_CACHED_SLOT,
    ITEM_SLOT,
    MOST_QUERIES,
    QUERY_SLOT,
    ZERO_SLOT,
    StatePlan,
)
from hiscore.recurrence.state_pool import StatePool
from hiscore.recurrence.torch_recurrence import TorchRecurrence
from hiscore.recurrence.triton_recurrence import TritonRecurrence
from hiscore.scoring.packing.packing import pack
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.packing.state_cache import StateCache
from hiscore.scoring.requests.request import MultiItemPrompt
from tests.support.tiers import first_of

SHAPE = RecurrentShape(key_heads=1, value_heads=2, key_dim=16, value_dim=12, taps=4)
SLOTS = FIRST_CACHED_SLOT + 6
EPS = 1e-6
# Sums of at most 64 products in float32, in another order, behind a norm of heads of about 0.1.
ROUNDING = 5e-5
SHOWS = 100 * ROUNDING
BEGINNING = list(range(100, 230))
# Queries that begin alike, of less than a convolution, none, and cut over forwards as items are.
BATCH = [
    MultiItemPrompt.of(BEGINNING, [[8] * 130, [3] * 3, [9]]),
    MultiItemPrompt.of([*BEGINNING, 3, 4], [[5], [6, 7]]),
    MultiItemPrompt.of([], [[2] * 70, [5, 6]]),
    MultiItemPrompt.of([5] * CHUNK, [[]]),  # the next query begins where a whole chunk ends
    MultiItemPrompt.of([1, 2], [[1], [7] * 5]),
    MultiItemPrompt.of(BEGINNING[:CHUNK], [[4] * CHUNK]),
]


def forwards_of(budget: int, batches: int = 2) -> list[Forward]:
    cache = QueryCache(64, 40, states=StateCache(SLOTS))
    return [forward for _ in range(batches) for forward in pack(BATCH, budget, cache).forwards]


def largest_difference(forwards: list[Forward]) -> float:
    torch.manual_seed(0)
    embedding = torch.randn(300, SHAPE.inputs)
    heads = SHAPE.value_heads
    weights = RecurrentWeights(
        torch.randn(SHAPE.taps, SHAPE.channels), -torch.rand(heads), torch.randn(heads), torch.randn(12)
    )
    pools = [StatePool.empty(SHAPE, 2, SLOTS, torch.float32, torch.device("cpu")) for _ in range(2)]
    plain, kernels = TorchRecurrence(SHAPE, pools[0], EPS), TritonRecurrence(SHAPE, pools[1], EPS, 2)
    found = 0.0
    for forward in forwards:
        assert forward.states is not None
        plain.plan(forward.states)
        kernels.table = torch.from_numpy(kernels.tables.of(forward.states))
        rows = len(forward.input_ids)
        # Garbage in the padding.
        inputs = torch.full((rows + 5, SHAPE.inputs), float("nan"))
        inputs[:rows] = embedding[torch.from_numpy(forward.input_ids).long()]
        expected, out = plain.mix(1, weights, inputs[:rows]), kernels.mix(1, weights, inputs)
        assert not out[rows:].any()
        found = max(found, (out[:rows] - expected).abs().nan_to_num(np.inf).max().item())
        if found > SHOWS:
            break
    return found


@pytest.mark.slow
@pytest.mark.parametrize("budget", first_of(200, CHUNK, 4_096))
def test_kernels_equal_the_plain_form(budget: int) -> None:
    """Queries and items are cut over forwards; a second batch begins with the states that the first has kept."""
    forwards = forwards_of(budget)
    loaded = {slot for each in forwards if each.states is not None for slot in each.states.loaded.tolist()}
    assert budget > 200 or {ZERO_SLOT, QUERY_SLOT, ITEM_SLOT, FIRST_CACHED_SLOT} <= loaded
    assert largest_difference(forwards) < ROUNDING


Change = Callable[[ChunkTables], None]


def tail_one_short(tables: ChunkTables) -> None:
    right = tables._sources
    tables._sources = lambda *of: np.where(right(*of) >= 1, right(*of) - 1, right(*of))


def state_of_another(tables: ChunkTables) -> None:
    right = tables._places_of
    tables._places_of = lambda plan: np.roll(right(plan), 1)


def handed_on_too_early(tables: ChunkTables) -> None:
    tables._places[QUERY_SLOT] = FIRST_CACHED_SLOT


@pytest.mark.slow
@pytest.mark.parametrize("change", [tail_one_short, state_of_another, handed_on_too_early])
def test_control_a_mistake_in_the_hand_over_shows(change: Change, monkeypatch: pytest.MonkeyPatch) -> None:
    right = ChunkTables.of

    def of(tables: ChunkTables, plan: StatePlan) -> np.ndarray:
        change(tables)
        return right(tables, plan)

    monkeypatch.setattr(ChunkTables, "of", of)
    assert largest_difference(forwards_of(200, batches=1)) > SHOWS


@pytest.mark.parametrize("budget", [CHUNK, 200, 4_096])
def test_tables_cover_each_row_once_and_write_nothing_that_is_read(budget: int) -> None:
    tables = ChunkTables(SHAPE.taps)
    for forward in forwards_of(budget):
        assert forward.states is not None
        found = tables.of(forward.states)
        count, first, later, tails, rows = found[: chunk_tables.HEADER].tolist()
        assert rows == len(forward.input_ids)
        assert len(found) <= table_size(rows, SHAPE.taps)
        fields = ROWS_OF_CHUNK + SHAPE.taps - 1
        chunks, rest = np.split(found[chunk_tables.HEADER :], [count * fields])
        chunks = chunks.reshape(count, fields)
        chains = rest[: 4 * (first + later)].reshape(-1, 4)
        spans = sorted((begin, end) for begin, end in chains[:, :2].tolist())
        for pairs in (chunks[:, :2].tolist(), spans):
            assert [begin for begin, _ in pairs] == [0, *(end for _, end in pairs[:-1])]
            assert pairs[-1][1] == rows
        # Programs run in any order: nothing that others write may be read beside them.
        written = set(chunks[:, 2].tolist()) - {NOWHERE}
        assert written.isdisjoint(chains[:first, 3].tolist())
        kept = rest[4 * (first + later) :].reshape(tails, SHAPE.taps)
        assert set(kept[:, 0].tolist()) == {place for place in written if place >= 0}
        read = {(-1 - source) // (SHAPE.taps - 1) for source in kept[:, 1:].flatten().tolist() if source < 0}
        assert read.isdisjoint(kept[:, 0].tolist())


def test_more_queries_than_places_are_refused() -> None:
    prompts = [MultiItemPrompt.of([n], [[n]]) for n in range(MOST_QUERIES + 1)]
    (forward,) = pack(prompts, 4_096, QueryCache(64, 40, states=StateCache(SLOTS))).forwards
    assert forward.states is not None
    with pytest.raises(ValueError, match="holds 65 queries' states, at most 64 fit"):
        ChunkTables(SHAPE.taps).of(forward.states)
