"""Shares of prompts in a prefill forward.

The oldest prompt is guaranteed half of it, so that short prompts cannot starve it; the rest goes to the shortest
first, so that a long prompt does not delay them either. A part that is not its prompt's last ends at a whole
block: attention then adds up the same keys together wherever a prompt is cut, whatever of it was cached. (On a GPU
the library may still choose another kernel for a product of other rows.)

A long prompt takes less time in longer forwards, for which others would wait longer: short prompts that share it,
and the steps of running sequences.
"""

from collections.abc import Iterable

from hiscore.decoding.interface.cache_config import SHARED_TOKENS, CacheConfig
from hiscore.decoding.sequence import Sequence


def share_forward(
    sequences: Iterable[Sequence], cache_config: CacheConfig, running: int
) -> list[tuple[Sequence, int]]:
    """Divide a forward, for which `running` sequences wait, among incomplete prompts in order of their start."""
    budget = cache_config.prefill_token_budget
    waiting = list(sequences)
    are_long = all(sequence.prompt_left > SHARED_TOKENS for sequence in waiting)
    if not are_long or running >= len(waiting):
        budget = min(budget, SHARED_TOKENS)
    block = cache_config.block_size if 0 < cache_config.block_size <= budget else 1
    shares: list[tuple[Sequence, int]] = []

    def cut(sequence: Sequence, tokens: int) -> int:
        return tokens if tokens == sequence.prompt_left else tokens - (sequence.prefilled + tokens) % block

    guaranteed = 0
    if waiting:
        half = max((budget + 1) // 2, block)
        guaranteed = max(0, cut(waiting[0], min(waiting[0].prompt_left, half)))
    budget -= guaranteed
    for sequence in sorted(waiting, key=lambda sequence: sequence.prompt_left):
        own = guaranteed if sequence is waiting[0] else 0
        share = max(0, cut(sequence, min(sequence.prompt_left, budget + own)))
        budget -= share - own
        if share:
            shares.append((sequence, share))
    return shares
