"""A launch of the decode engine whose result has not been read."""

from dataclasses import dataclass

from hiscore.decoding.interface.worker import PendingForward
from hiscore.decoding.sequence import Sequence


@dataclass(frozen=True)
class InFlight:
    """A step or a prefill that is being computed.

    Attributes:
        launched: Gives the result.
        sequences: All of its sequences.
        sampled: Those for which the result has a token, in its order.
        prompt_tokens: Tokens that it prefills; 0 for a step.
    """

    launched: PendingForward
    sequences: list[Sequence]
    sampled: list[Sequence]
    prompt_tokens: int = 0

    @property
    def failed(self) -> list[tuple[Sequence, Exception]]:
        """Sequences that failed at the launch: they must end before another launch has a row for them."""
        failures = self.launched.failures
        return [(each, failures[each.seq_index]) for each in self.sequences if each.seq_index in failures]
