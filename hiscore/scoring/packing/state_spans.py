"""The states of a forward: which spans of its rows begin with which, and where states go."""

from collections import defaultdict
from itertools import pairwise

import numpy as np

from hiscore.arrays import Int64
from hiscore.recurrence.metadata import ITEM_SLOT, QUERY_SLOT, ZERO_SLOT, SpanBatch, StatePlan
from hiscore.scoring.packing.packed_prompt import PackedPrompt


class StatesOfForward:
    def __init__(self, begin: int, end: int) -> None:
        """Start the plan of a forward that begins and ends at these indices of the batch's sequence."""
        self._begin, self._end = begin, end
        self._loaded: dict[int, int] = {}  # number by slot
        self._computed = 0
        self._stored: dict[int, int] = {}  # state by slot
        # By step, and by whether states are left: edges of spans that follow each other, the state that they begin
        # with, and the one left. Steps follow each other; the states of a step are known before it.
        self._spans: defaultdict[tuple[int, bool], list[tuple[Int64, int, int]]] = defaultdict(list)

    def add(self, p: PackedPrompt) -> None:
        first = max(self._begin - p.begin, p.cached)
        last = min(self._end, p.end) - p.begin
        shift = p.begin - self._begin  # from token to row
        state = self._load(p.states.first if first == p.cached else QUERY_SLOT)
        step = 0
        if first < p.query:
            stop = min(last, p.query)
            cuts = [place for place in p.states.kept if first < place < stop]
            for step, (a, b) in enumerate(pairwise((first, *cuts, stop)), 1):
                before, state = state, self._compute()
                self._add(step - 1, np.array([a, b]) + shift, before, state)
                if b in p.states.kept:
                    self._stored[p.states.kept[b]] = state
            first = stop
        if p.end > self._end:
            self._stored[QUERY_SLOT] = state
        if first < last:
            self._add_items(p, first, last, step, state)

    def plan(self) -> StatePlan:
        self._load(ZERO_SLOT)
        slots = list(self._stored)
        return StatePlan(
            batches=tuple(self._batch(*key) for key in sorted(self._spans)),
            loaded=np.array(list(self._loaded), np.int64),
            states=len(self._loaded) + self._computed,
            stored=self._numbers([self._stored[slot] for slot in slots]),
            stored_slots=np.array(slots, np.int64),
        )

    def _add_items(self, p: PackedPrompt, first: int, last: int, step: int, state: int) -> None:
        shift = p.begin - self._begin
        begin, end = p.node(first)
        if begin < first:
            # The rest of an item that began in the forward before.
            stop = min(last, end)
            self._add_part(0, np.array([first, stop]) + shift, self._load(ITEM_SLOT), stop < end)
            first = stop
        ends = p.prompt.item_ends
        edges = ends[ends.searchsorted(first) : ends.searchsorted(last, "right")]
        self._add(step, edges + shift, state)
        if len(edges) and edges[-1] < last:
            self._add_part(step, np.array([edges[-1], last]) + shift, state, goes_on=True)

    def _add_part(self, step: int, edges: Int64, start: int, goes_on: bool) -> None:
        """Add a part of an item, which may go on in the next forward."""
        left = self._compute() if goes_on else None
        self._add(step, edges, start, left)
        if left is not None:
            self._stored[ITEM_SLOT] = left

    def _load(self, slot: int) -> int:
        """The state in a slot of the pool; before the plan is finished, a number of its own."""
        return self._loaded.setdefault(slot, len(self._loaded))

    def _compute(self) -> int:
        """Number of a state to compute; negative before the plan is finished."""
        self._computed += 1
        return -self._computed

    def _add(self, step: int, edges: Int64, start: int, end: int | None = None) -> None:
        """Add the spans between edges, which begin with one state, to those of a step."""
        if len(edges) and edges[0] < edges[-1]:
            self._spans[step, end is not None].append((edges, start, end or 0))

    def _batch(self, step: int, leaves: bool) -> SpanBatch:
        spans = self._spans[step, leaves]
        rows = [np.arange(edges[0], edges[-1]) for edges, _, _ in spans]
        lengths = [np.diff(edges) for edges, _, _ in spans]
        counts = [np.count_nonzero(each) for each in lengths]
        joined = np.concatenate(lengths)
        starts = self._numbers([start for _, start, _ in spans]).repeat(counts)
        ends = self._numbers([end for _, _, end in spans]) if leaves else np.empty(0, np.int64)
        return SpanBatch(
            np.concatenate(rows), np.concatenate(([0], joined[joined > 0].cumsum())), starts, ends
        )

    def _numbers(self, states: list[int]) -> Int64:
        """States as the plan counts them: those that are computed come after those that are loaded."""
        found = np.array(states, np.int64)
        return np.where(found < 0, len(self._loaded) - 1 - found, found)
