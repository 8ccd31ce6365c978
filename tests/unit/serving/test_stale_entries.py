"""Heaps without the entries that are out of date: what comes first stays so, and they do not grow for ever."""

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hiscore.serving import stale_entries
from hiscore.serving.stale_entries import SPARE, drop_stale


@given(st.lists(st.integers(0, 1_000), unique=True, max_size=400), st.data())
def test_what_is_up_to_date_comes_in_order(numbers: list[int], data: st.DataObject) -> None:
    current = set(data.draw(st.lists(st.sampled_from(numbers), max_size=100)) if numbers else [])
    heap = [(number,) for number in numbers]
    heapq.heapify(heap)
    drop_stale(heap, lambda entry: entry[0] in current, len(current))
    assert len(heap) <= 2 * len(current) + SPARE
    in_order = [heapq.heappop(heap)[0] for _ in range(len(heap))]
    assert [number for number in in_order if number in current] == sorted(current)


@pytest.mark.parametrize("spare", [SPARE, math.inf])
def test_a_heap_is_as_large_as_what_is_up_to_date(spare: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest ten are, and the first never goes: the control keeps all."""
    monkeypatch.setattr(stale_entries, "SPARE", spare)
    heap, gone_through = [(-1,)], 0

    def is_current(entry: tuple[int]) -> bool:
        nonlocal gone_through
        gone_through += 1
        return entry[0] < 0 or entry[0] > number - 10

    for number in range(10_000):
        drop_stale(heap, is_current, 11)
        heapq.heappush(heap, (number,))
    assert (len(heap) <= 2 * 11 + SPARE + 1) == (spare == SPARE)
    # On average each is looked at less than twice.
    assert gone_through < 2 * 10_000
