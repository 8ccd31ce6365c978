"""What callers see of a load."""

import numpy as np
import pytest

from hiscore.decoding.sequence import DecodeCall, Output
from hiscore.decoding.stats import EngineStats
from perf.decoding.closed_loop import Callers, ClosedLoop, Request


def test_gaps_while_a_prompt_is_prefilled_can_be_left_out() -> None:
    callers = Callers({})
    callers._requests = [Request(0.0, [1.0, 2.0, 4.5, 5.0]), Request(2.5, [4.0, 5.5])]
    assert callers.gaps() == [1.0, 2.5, 0.5, 1.5]
    assert callers.gaps(undisturbed=True) == [1.0, 0.5, 1.5]


class Turns:
    """An engine that answers once all callers have sent: a token for each in turn, so many behind the others."""

    def __init__(self, callers: Callers, at_once: int, behind: int) -> None:
        self._callers, self._at_once, self._behind = callers, at_once, behind
        self._calls: dict[int, DecodeCall] = {}
        self._steps = 0

    def submit(self, call: DecodeCall, key: int) -> None:
        self._calls[key] = call
        if len(self._calls) == self._at_once:
            self._answer()

    def stats(self) -> EngineStats:
        return EngineStats(steps=self._steps)

    def _answer(self) -> None:
        tokens = {key: -self._behind * key for key in self._calls}
        while tokens:
            self._steps += 1
            for key in list(tokens):
                tokens[key] += 1
                if tokens[key] > 0:
                    last = tokens[key] == self._calls[key].params.max_tokens
                    self._callers.emit(key, Output([0], "", "length" if last else ""))
                    if last:
                        del tokens[key]


@pytest.mark.parametrize("behind", [1, 4, 12])
def test_steps_count_from_the_last_first_token_to_the_first_end(behind: int) -> None:
    callers = Callers({})
    callers.serve(Turns(callers, 2, behind))
    callers.run(ClosedLoop(2, 2, 8, 10), 100, np.random.default_rng(0))
    if behind > 10:
        with pytest.raises(ValueError, match="never ran together"):
            _ = callers.together
    else:
        begin, end = callers.together
        assert (begin.steps, end.steps) == (behind + 1, 10)
