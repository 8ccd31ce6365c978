"""Guard that keeps sequences from waiting for ever (`hiscore.decoding.scheduling.preemption`)."""

from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.pools.block_manager import BlockManager
from hiscore.decoding.pools.page_needs import NOTHING, PagesNeeded
from hiscore.decoding.scheduling.page_reclaimer import PageReclaimer
from hiscore.decoding.scheduling.preemption import PreemptionPolicy, can_spare
from hiscore.decoding.scheduling.queues import Queues
from hiscore.decoding.scheduling.schedule import Schedule
from hiscore.decoding.sequence import Sequence, Status


class StarvationGuard:
    """Preempts sequences for overdue ones, and lets others use what is kept for one that cannot start anyway."""

    def __init__(
        self,
        queues: Queues,
        blocks: BlockManager,
        reclaimer: PageReclaimer,
        policy: PreemptionPolicy,
        cache_config: CacheConfig,
    ) -> None:
        self._queues, self._blocks, self._reclaimer = queues, blocks, reclaimer
        self._policy, self._cache_config = policy, cache_config

    def make_room(self, schedule: Schedule, step: int) -> None:
        """Take what the shortest overdue sequence lacks, from a preempted one or from the longest running."""
        overdue = [each for each in self._queues.front if self._policy.is_overdue(each, step)]
        if not overdue or self._queues.draining:
            return
        spare = self._reclaimer.spare()
        for first in sorted(overdue, key=self._policy.wait_steps):
            needed = self._blocks.needed_to_start(first)
            if not self._blocks.can_allocate(needed, spare):
                break
        else:
            return
        lacking = self._blocks.to_give_up(needed + spare)
        victim = self._victim(first, needed, spare, lacking)
        if victim is None:
            return
        if lacking:
            # The victim goes on as soon as it has back what it gave; others use that first, one after the other.
            for each in overdue:
                if self._blocks.needed_to_start(each).host <= needed.host:
                    self._queues.put_before(each, victim)
        if victim.status is Status.PREEMPTED:
            self._reclaimer.take_host_blocks(victim, lacking, schedule.releases)
            return
        victim.turn.gives_up = lacking
        if not lacking:
            self._queues.enqueue(victim, step)
        self._queues.move(victim, Status.DRAINING)

    def may_overtake(
        self, sequence: Sequence, step: int, keepers: list[Sequence], spare: PagesNeeded
    ) -> bool:
        """Return whether a short, overdue sequence may start before the keepers, for which free memory is kept.

        The keepers must be unable to start even if all short sequences that are younger ended.
        """
        return (
            self._policy.is_short(sequence)
            and self._policy.is_overdue(sequence, step)
            and self._blocks.can_allocate(self._blocks.needed_to_start(sequence), spare)
            and not any(self._fits_without_younger(keeper, spare) for keeper in keepers)
        )

    def _victim(
        self, first: Sequence, needed: PagesNeeded, spare: PagesNeeded, lacking: int
    ) -> Sequence | None:
        """Choose the sequence that can spare what is needed, `lacking` blocks of the host among it."""
        holders = [*self._queues.preempted, *self._queues.running] if lacking else list(self._queues.running)
        victims = []
        for holder in holders:
            runs = [holder] if holder.status is Status.RUNNING else []
            if holder is first or (runs and not self._policy.may_preempt(holder, first)):
                continue
            left = self._blocks.blocks_kept(holder, lacking)
            lost = holder.steps_beyond(left * self._cache_config.block_tokens) if lacking else 0
            freed = self._blocks.freed_by(holder, left)
            if can_spare(holder, lost) and self._blocks.can_allocate(needed, spare, runs, freed):
                victims.append(holder)
        return max(
            victims,
            key=lambda holder: (holder.status is Status.PREEMPTED, holder.turn.steps_run),
            default=None,
        )

    def _fits_without_younger(self, sequence: Sequence, spare: PagesNeeded) -> bool:
        needed = self._blocks.needed_to_start(sequence)
        holders = [*self._queues.active, *self._queues.preempted]
        younger = [each for each in holders if each.turn.queue_position > sequence.turn.queue_position]
        younger = [each for each in younger if self._policy.is_short(each)]
        freed = sum((self._blocks.freed_by(each, left=0) for each in younger), NOTHING)
        return self._blocks.can_allocate(needed, spare, younger, freed)
