"""What is launched next, decided without a thread, a clock or a device.

Sequences start in the order in which they came. One that does not fit yet may be overtaken by smaller ones, a few
times; then what becomes free is kept for it. Every running sequence is in every step, beside at most one
forward of prefill. Of that the oldest prompt is sure of a half, so that no flow of short prompts can hold it
up; the rest goes to the shortest first, so that a long one does not hold them up either.

A sequence that has run for a quantum of steps is preempted for the one that waits at the front, if that has waited
as long and would fit in its place. It goes to the back of the queue, with its pages on the host.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from hiscore.decoding.batch import sampling_of, step_rows
from hiscore.decoding.block_manager import Needs, Pools, Release, needs_of
from hiscore.decoding.sequence import Sequence, Stage
from hiscore.decoding.worker.interface import (
    NO_PAGES,
    STAGING_PAGE_SIZE,
    CacheConfig,
    DecodeBatch,
    PrefillChunk,
    SamplingBatch,
)

MOST_OVERTAKEN = 16
# So many from the front of the queue are looked at in each iteration.
LOOK_AHEAD = 16


@dataclass
class Plan:
    """What to launch, in this order."""

    releases: list[Release] = field(default_factory=list)
    running: list[Sequence] = field(default_factory=list)
    rows: DecodeBatch | None = None
    """One row for each of `running`, if there are any."""
    restored: list[Sequence] = field(default_factory=list)
    """To be copied back into staging."""
    prefilling: list[Sequence] = field(default_factory=list)
    chunks: list[PrefillChunk] = field(default_factory=list)
    """One for each of `prefilling`."""
    filled: list[Sequence] = field(default_factory=list)
    """Those whose last chunk is among them."""
    sampling: SamplingBatch | None = None
    """One row for each of `filled`; None if nothing is prefilled."""
    admitted: list[Sequence] = field(default_factory=list)


class Scheduler:
    """Sequences by their stage, and the pools that they share.

    quantum: steps that a sequence runs before it may be preempted, and waits before another may be for it; 0:
    never.
    """

    def __init__(self, cache_config: CacheConfig, quantum: int) -> None:
        self.pools = Pools(cache_config)
        self.preemptions = 0
        self._cache_config = cache_config
        self._quantum = quantum
        self._at: dict[Stage, dict[Sequence, None]] = {
            stage: {} for stage in Stage if stage is not Stage.GONE
        }
        self._releases: list[Release] = []
        self._turns = 0
        self._steps = 0

    def count(self, *stages: Stage) -> int:
        """How many sequences stand there."""
        return sum(len(self._at[stage]) for stage in stages)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to wait for."""
        return not self._releases and not any(self._at.values())

    def add(self, sequence: Sequence) -> None:
        """Put a new sequence at the end of the queue; `reservation.check_fits` must have let it pass."""
        self._queue(sequence)
        self._at[Stage.WAITING][sequence] = None

    def end(self, sequence: Sequence) -> None:
        """It has had its last answer: launch no more of it, and take back what it holds as soon as may be."""
        sequence.ended = True
        if sequence.stage in (Stage.WAITING, Stage.PREEMPTED):
            self._give_back(sequence, self._releases)
        elif sequence.stage is not Stage.LEAVING:
            self._move(sequence, Stage.LEAVING)

    def plan(self, drained: Callable[[int], bool]) -> Plan:
        """The next iteration, as if all that it names were launched; drained: see `Worker`."""
        plan = Plan(releases=self._releases)
        self._releases = []
        for sequence in list(self._at[Stage.LEAVING]):
            if not sequence.in_flight and drained(sequence.seq_index):
                self._give_back(sequence, plan.releases)
        for sequence in list(self._at[Stage.STAGING]):
            if drained(sequence.seq_index):
                self.pools.end_staging(sequence)
                self._move(sequence, Stage.RUNNING)
        self._step(plan)
        self._start(plan)
        self._prefill(plan)
        self._preempt()
        return plan

    def _step(self, plan: Plan) -> None:
        plan.running = list(self._at[Stage.RUNNING])
        if not plan.running:
            return
        self._steps += 1
        plan.rows = step_rows(plan.running)
        for sequence in plan.running:
            sequence.ran += 1
            sequence.sampled += 1
            sequence.in_flight += 1
            if sequence.all_sampled:
                self._move(sequence, Stage.LEAVING)

    def _start(self, plan: Plan) -> None:
        """Give those that wait what they need."""
        passed: list[Sequence] = []
        barred: set[Stage] = set()
        for sequence in self._waiting():
            if not self.pools.seq_indices.free:
                return
            preempted, needs = sequence.stage is Stage.PREEMPTED, self._needs(sequence)
            # A restore copies all that a sequence has: one in an iteration, or those that run would stall.
            wait = sequence.stage in barred or (preempted and bool(plan.restored))
            if wait or not self.pools.fit(needs):
                passed.append(sequence)
                if sequence.overtaken >= MOST_OVERTAKEN:
                    # Pages of the host come free when sequences end: those that hold some must be able to.
                    lacks_host = needs.host > self.pools.host.free
                    barred |= {Stage.WAITING} if lacks_host else {Stage.WAITING, Stage.PREEMPTED}
                continue
            for other in passed:
                other.overtaken += 1
            self.pools.take(sequence, needs)
            sequence.overtaken = sequence.ran = 0
            if preempted:
                plan.restored.append(sequence)
                self._admit(sequence, plan)
            else:
                self._move(sequence, Stage.PREFILLING)

    def _prefill(self, plan: Plan) -> None:
        """Hand a forward's tokens out to the prompts that are not filled."""
        budget = self._cache_config.prefill_token_budget
        oldest = next(iter(self._at[Stage.PREFILLING]), None)
        sure = min(oldest.unfilled, (budget + 1) // 2) if oldest else 0
        budget -= sure
        for sequence in sorted(self._at[Stage.PREFILLING], key=lambda sequence: sequence.unfilled):
            share = min(sequence.unfilled, budget + (sure if sequence is oldest else 0))
            budget -= share - (sure if sequence is oldest else 0)
            if share:
                self._fill(sequence, share, plan)
        if plan.chunks:
            positions = np.array([sequence.length for sequence in plan.filled], np.int32)
            plan.sampling = sampling_of(plan.filled, positions)

    def _fill(self, sequence: Sequence, tokens: int, plan: Plan) -> None:
        start, end = sequence.prefilled, sequence.prefilled + tokens
        last = tokens == sequence.unfilled
        plan.prefilling.append(sequence)
        tokens_of, options = sequence.call.prompt[start:end], sequence.call.options
        # Nothing will read the keys and values of a sequence that ends with its first token.
        host = sequence.host if options.max_tokens > 1 else NO_PAGES
        plan.chunks.append(
            PrefillChunk(
                sequence.seq_index, tokens_of, start, sequence.staging, host, last, not options.sparse
            )
        )
        sequence.prefilled = end
        sequence.in_flight += 1
        if last:
            sequence.sampled = 1
            plan.filled.append(sequence)
            if sequence.all_sampled:
                self._move(sequence, Stage.LEAVING)
            else:
                self._admit(sequence, plan)

    def _admit(self, sequence: Sequence, plan: Plan) -> None:
        plan.admitted.append(sequence)
        self._move(sequence, Stage.STAGING)

    def _preempt(self) -> None:
        first = next(self._waiting(), None)
        if not self._quantum or first is None or self._at[Stage.LEAVING]:
            return
        needs = self._needs(first)
        if self._steps - first.waits_since < self._quantum or self.pools.fit(needs):
            return
        able = [sequence for sequence in self._at[Stage.RUNNING] if self._may_preempt(sequence, needs)]
        if able:
            self._move(max(able, key=lambda sequence: sequence.ran), Stage.LEAVING)

    def _may_preempt(self, sequence: Sequence, needs: Needs) -> bool:
        can_come_back = sequence.length <= self._cache_config.staging_pages * STAGING_PAGE_SIZE
        return sequence.ran >= self._quantum and can_come_back and self.pools.fit(needs, without=sequence)

    def _waiting(self) -> Iterator[Sequence]:
        """The first of those that wait, new or preempted, in their order."""
        queues = ([*islice(self._at[stage], LOOK_AHEAD)] for stage in (Stage.WAITING, Stage.PREEMPTED))
        return heapq.merge(*queues, key=lambda sequence: sequence.turn)

    def _needs(self, sequence: Sequence) -> Needs:
        if sequence.stage is Stage.PREEMPTED:
            return replace(needs_of(sequence.call, sequence.length, self._cache_config), host=0)
        return needs_of(sequence.call, len(sequence.call.prompt), self._cache_config)

    def _give_back(self, sequence: Sequence, releases: list[Release]) -> None:
        """What leaves for good gives all back; the others are preempted, and go to the back of the queue."""
        holds = sequence.seq_index >= 0 or len(sequence.host)
        released = self.pools.give_back(sequence, keep_host=not sequence.ended)
        if holds:
            releases.append(released)
        if sequence.ended:
            self._move(sequence, Stage.GONE)
        else:
            self.preemptions += 1
            self._queue(sequence)
            self._move(sequence, Stage.PREEMPTED)

    def _queue(self, sequence: Sequence) -> None:
        self._turns += 1
        sequence.turn, sequence.waits_since = self._turns, self._steps

    def _move(self, sequence: Sequence, stage: Stage) -> None:
        del self._at[sequence.stage][sequence]
        sequence.stage = stage
        if stage is not Stage.GONE:
            self._at[stage][sequence] = None
