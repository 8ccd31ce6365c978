"""Are the streams' tokens right? Each prompt's against those that it got first, whatever ran beside it."""

from collections.abc import Sequence
from itertools import pairwise

from perf.loadgen.analyzer_decode import Generation
from perf.loadgen.window import WrongScores

LEAD = 8
# Greedy tokens are equal as long as no two logits are nearly so. In bfloat16, with random weights, a step here and
# there flips one, and all that follow differ; a stream that got another one's tokens agrees in none but by chance.
LEAST_AGREEMENT, MOST_BY_CHANCE = 0.5, 0.25


class FirstStreams:
    """The first tokens that each prompt of a pool has got, for later ones to be held against."""

    def __init__(self) -> None:
        self._first: dict[tuple[str, int], list[int]] = {}

    def agreement(self, pool: str, found: Sequence[Generation], tokens: int) -> float | None:
        """The share of the first `LEAD` tokens before one differs, over prompts seen before; None if none was.

        Raises:
            WrongScores: a stream that ended well has not `tokens` of them, they are others than the prompt's, or
                prompts get the same tokens anyway, so that a mistake would not show.
        """
        good = [stream for stream in found if stream.finish_reason == "length"]
        for stream in good:
            if len(stream.ids) != tokens:
                raise WrongScores(f"a stream of '{pool}' has {len(stream.ids)} tokens, asked for {tokens}")
        known = [(s.ids, self._first[pool, s.prompt]) for s in good if (pool, s.prompt) in self._first]
        for stream in good:
            self._first.setdefault((pool, stream.prompt), stream.ids[:LEAD])
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
    return sum(_same(found, first) for found, first in pairs) / max(1, len(pairs))


def _same(found: Sequence[int], first: Sequence[int]) -> float:
    pairs = list(zip(found[:LEAD], first, strict=False))
    differ = next((at for at, (a, b) in enumerate(pairs) if a != b), len(pairs))
    return differ / max(1, len(pairs))
