"""Checks that generated tokens are right: a prompt must get its first tokens again, whatever else runs."""

from collections.abc import Sequence
from itertools import pairwise

from perf.loadgen.analyzer_decode import Generation
from perf.loadgen.window import WrongScores

LEAD = 8
# Greedy tokens repeat unless two logits are nearly equal. In bfloat16 and with random weights a step now and then
# picks another token, and all that follow differ; tokens of another prompt agree by chance only.
LEAST_AGREEMENT, MOST_BY_CHANCE = 0.5, 0.25


class FirstTokens:
    """The first tokens that each prompt of a pool got, to compare later ones with."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], list[int]] = {}

    def agreement(self, pool: str, generations: Sequence[Generation], tokens: int) -> float | None:
        """Compare sequences with what their prompts got first; remember those of new prompts.

        Args:
            tokens: Tokens that each should have.

        Returns:
            The mean share of the first `LEAD` tokens up to the first that differs; None if no prompt was known.

        Raises:
            WrongScores: A complete sequence has another length, sequences differ from what their prompts got
                first, or all prompts get the same tokens, so that a mistake would not show.
        """
        good = [generation for generation in generations if generation.finish_reason == "length"]
        for generation in good:
            if len(generation.ids) != tokens:
                raise WrongScores(
                    f"a sequence of '{pool}' has {len(generation.ids)} tokens, asked for {tokens}"
                )
        known = [(s.ids, self._first[pool, s.prompt]) for s in good if (pool, s.prompt) in self._first]
        for generation in good:
            self._first.setdefault((pool, generation.prompt), generation.ids[:LEAD])
        of_pool = [first for (name, _), first in self._first.items() if name == pool]
        control = _mean(list(pairwise(of_pool)))
        if control > MOST_BY_CHANCE:
            raise WrongScores(
                f"'{pool}': neighbours agree in {control:.0%} of the tokens: a mistake would not show"
            )
        if not known:
            return None
        share = _mean(known)
        if share < LEAST_AGREEMENT:
            raise WrongScores(
                f"'{pool}': prompts agree with what they got first in {share:.0%} of the tokens"
            )
        return share


def _mean(pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> float:
    return sum(_same(ids, first) for ids, first in pairs) / max(1, len(pairs))


def _same(ids: Sequence[int], first: Sequence[int]) -> float:
    pairs = list(zip(ids[:LEAD], first, strict=False))
    differ = next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return differ / max(1, len(pairs))
