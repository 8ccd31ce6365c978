"""What is launched next, decided without a thread, a clock or a device.

Streams start in the order in which they came. One that does not fit yet may be overtaken by smaller ones, a few
times; then what becomes free is kept for it. Every running stream is in every step, beside at most one forward of
prefill. Of that the oldest prompt is sure of a half, so that no flow of short prompts can hold it up; the rest
goes to the shortest first, so that a long one does not hold them up either.

A stream that has run for a quantum of steps is preempted for the one that waits at the front, if that has waited
as long and would fit in its place. It goes to the back of the queue, with its pages on the host.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np

from hiscore.decoding.batch import sampling_of, step_rows
from hiscore.decoding.block_manager import Needs, Pools, Release, needs_of
from hiscore.decoding.sequence import Stage, Stream
from hiscore.decoding.worker.interface import NO_PAGES, STAGING_PAGE, Chunk, Geometry, Sampling, StepRows

MOST_OVERTAKEN = 16
# So many from the front of the queue are looked at in each iteration.
LOOK_AHEAD = 16


@dataclass
class Plan:
    """What to launch, in this order."""

    releases: list[Release] = field(default_factory=list)
    running: list[Stream] = field(default_factory=list)
    rows: StepRows | None = None
    """One row for each of `running`, if there are any."""
    restored: list[Stream] = field(default_factory=list)
    """To be copied back into staging."""
    prefilling: list[Stream] = field(default_factory=list)
    chunks: list[Chunk] = field(default_factory=list)
    """One for each of `prefilling`."""
    filled: list[Stream] = field(default_factory=list)
    """Those whose last chunk is among them."""
    sampling: Sampling | None = None
    """One row for each of `filled`; None if nothing is prefilled."""
    admitted: list[Stream] = field(default_factory=list)


class Scheduler:
    """Streams by their stage, and the pools that they share.

    quantum: steps that a stream runs before it may be preempted, and waits before another may be for it; 0: never.
    """

    def __init__(self, geometry: Geometry, quantum: int) -> None:
        self.pools = Pools(geometry)
        self.preemptions = 0
        self._geometry = geometry
        self._quantum = quantum
        self._at: dict[Stage, dict[Stream, None]] = {stage: {} for stage in Stage if stage is not Stage.GONE}
        self._releases: list[Release] = []
        self._turns = 0
        self._steps = 0

    def count(self, *stages: Stage) -> int:
        """How many streams stand there."""
        return sum(len(self._at[stage]) for stage in stages)

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to wait for."""
        return not self._releases and not any(self._at.values())

    def add(self, stream: Stream) -> None:
        """Put a new stream at the end of the queue; `reservation.check_fits` must have let it pass."""
        self._queue(stream)
        self._at[Stage.WAITING][stream] = None

    def end(self, stream: Stream) -> None:
        """It has had its last answer: launch no more of it, and take back what it holds as soon as may be."""
        stream.ended = True
        if stream.stage in (Stage.WAITING, Stage.PREEMPTED):
            self._give_back(stream, self._releases)
        elif stream.stage is not Stage.LEAVING:
            self._move(stream, Stage.LEAVING)

    def plan(self, drained: Callable[[int], bool]) -> Plan:
        """The next iteration, as if all that it names were launched; drained: of a slot, see `Worker`."""
        plan = Plan(releases=self._releases)
        self._releases = []
        for stream in list(self._at[Stage.LEAVING]):
            if not stream.in_flight and drained(stream.slot):
                self._give_back(stream, plan.releases)
        for stream in list(self._at[Stage.STAGING]):
            if drained(stream.slot):
                self.pools.end_staging(stream)
                self._move(stream, Stage.RUNNING)
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
        for stream in plan.running:
            stream.ran += 1
            stream.sampled += 1
            stream.in_flight += 1
            if stream.all_sampled:
                self._move(stream, Stage.LEAVING)

    def _start(self, plan: Plan) -> None:
        """Give those that wait what they need."""
        passed: list[Stream] = []
        barred: set[Stage] = set()
        for stream in self._waiting():
            if not self.pools.slots.free:
                return
            preempted, needs = stream.stage is Stage.PREEMPTED, self._needs(stream)
            # A restore copies all that a stream has: one in an iteration, or those that run would stall.
            wait = stream.stage in barred or (preempted and bool(plan.restored))
            if wait or not self.pools.fit(needs):
                passed.append(stream)
                if stream.overtaken >= MOST_OVERTAKEN:
                    # Pages of the host come free when streams end: those that hold some must be able to.
                    lacks_host = needs.host > self.pools.host.free
                    barred |= {Stage.WAITING} if lacks_host else {Stage.WAITING, Stage.PREEMPTED}
                continue
            for other in passed:
                other.overtaken += 1
            self.pools.take(stream, needs)
            stream.overtaken = stream.ran = 0
            if preempted:
                plan.restored.append(stream)
                self._admit(stream, plan)
            else:
                self._move(stream, Stage.PREFILLING)

    def _prefill(self, plan: Plan) -> None:
        """Hand a forward's tokens out to the prompts that are not filled."""
        budget = self._geometry.chunk
        oldest = next(iter(self._at[Stage.PREFILLING]), None)
        sure = min(oldest.unfilled, (budget + 1) // 2) if oldest else 0
        budget -= sure
        for stream in sorted(self._at[Stage.PREFILLING], key=lambda stream: stream.unfilled):
            share = min(stream.unfilled, budget + (sure if stream is oldest else 0))
            budget -= share - (sure if stream is oldest else 0)
            if share:
                self._fill(stream, share, plan)
        if plan.chunks:
            positions = np.array([stream.length for stream in plan.filled], np.int32)
            plan.sampling = sampling_of(plan.filled, positions)

    def _fill(self, stream: Stream, tokens: int, plan: Plan) -> None:
        start, end = stream.prefilled, stream.prefilled + tokens
        last = tokens == stream.unfilled
        plan.prefilling.append(stream)
        tokens_of, options = stream.call.prompt[start:end], stream.call.options
        # Nothing will read the keys and values of a stream that ends with its first token.
        host = stream.host if options.max_tokens > 1 else NO_PAGES
        plan.chunks.append(
            Chunk(stream.slot, tokens_of, start, stream.staging, host, last, not options.sparse)
        )
        stream.prefilled = end
        stream.in_flight += 1
        if last:
            stream.sampled = 1
            plan.filled.append(stream)
            if stream.all_sampled:
                self._move(stream, Stage.LEAVING)
            else:
                self._admit(stream, plan)

    def _admit(self, stream: Stream, plan: Plan) -> None:
        plan.admitted.append(stream)
        self._move(stream, Stage.STAGING)

    def _preempt(self) -> None:
        first = next(self._waiting(), None)
        if not self._quantum or first is None or self._at[Stage.LEAVING]:
            return
        needs = self._needs(first)
        if self._steps - first.waits_since < self._quantum or self.pools.fit(needs):
            return
        able = [stream for stream in self._at[Stage.RUNNING] if self._may_preempt(stream, needs)]
        if able:
            self._move(max(able, key=lambda stream: stream.ran), Stage.LEAVING)

    def _may_preempt(self, stream: Stream, needs: Needs) -> bool:
        can_come_back = stream.length <= self._geometry.staging_pages * STAGING_PAGE
        return stream.ran >= self._quantum and can_come_back and self.pools.fit(needs, without=stream)

    def _waiting(self) -> Iterator[Stream]:
        """The first of those that wait, new or preempted, in their order."""
        queues = ([*islice(self._at[stage], LOOK_AHEAD)] for stage in (Stage.WAITING, Stage.PREEMPTED))
        return heapq.merge(*queues, key=lambda stream: stream.turn)

    def _needs(self, stream: Stream) -> Needs:
        if stream.stage is Stage.PREEMPTED:
            return replace(needs_of(stream.call, stream.length, self._geometry), host=0)
        return needs_of(stream.call, len(stream.call.prompt), self._geometry)

    def _give_back(self, stream: Stream, releases: list[Release]) -> None:
        """What leaves for good gives all back; the others are preempted, and go to the back of the queue."""
        holds = stream.slot >= 0 or len(stream.host)
        released = self.pools.give_back(stream, keep_host=not stream.ended)
        if holds:
            releases.append(released)
        if stream.ended:
            self._move(stream, Stage.GONE)
        else:
            self.preemptions += 1
            self._queue(stream)
            self._move(stream, Stage.PREEMPTED)

    def _queue(self, stream: Stream) -> None:
        self._turns += 1
        stream.turn, stream.waits_since = self._turns, self._steps

    def _move(self, stream: Stream, stage: Stage) -> None:
        del self._at[stream.stage][stream]
        stream.stage = stage
        if stage is not Stage.GONE:
            self._at[stage][stream] = None
