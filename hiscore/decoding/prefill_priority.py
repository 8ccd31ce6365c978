"""When prompts come before a decode step.

A step takes about the same time for few sequences as for many. So while many prompts are to be prefilled, the few
sequences that already run wait for them, a limited number of forwards, and then all take their steps together.
"""

from hiscore.decoding.queues import Queues

MAX_FORWARDS = 4
"""Forwards between two steps, at most."""
LEAST_SHARE = 4
"""A step is put off where one of so many sequences is being prefilled, or more of them; never for one prompt."""


class PrefillPriority:
    """Counts how often in a row a step was put off.

    Args:
        queues: Sequences by their status.
    """

    def __init__(self, queues: Queues) -> None:
        self._queues = queues
        self._put_off = 0

    def puts_off_step(self) -> bool:
        """Whether the next iteration has no step; to be asked once for each."""
        running, prefilling = len(self._queues.running), len(self._queues.prefilling)
        many_prompts = prefilling > 1 and LEAST_SHARE * prefilling >= running + prefilling
        self._put_off = self._put_off + 1 if running and many_prompts else 0
        if self._put_off == MAX_FORWARDS:
            self._put_off = 0
        return self._put_off > 0
