"""What each turn of a conversation asks."""

import numpy as np

from hiscore.arrays import Int32
from perf.decoding.turns import conversation


class Echo:
    """Answers with the number of the turn."""

    def __init__(self) -> None:
        self.prompts: list[list[int]] = []

    def answer(self, prompt: Int32, tokens: int) -> tuple[float, list[int]]:
        self.prompts.append(prompt.tolist())
        return float(len(self.prompts)), tokens * [-len(self.prompts)]


def test_a_turn_asks_with_all_that_was_said() -> None:
    server = Echo()
    times, answers = conversation(server, np.array([[1, 2], [3, 4], [5, 6]], np.int32), 2)
    assert server.prompts == [[1, 2], [1, 2, -1, -1, 3, 4], [1, 2, -1, -1, 3, 4, -2, -2, 5, 6]]
    assert times == [1, 2, 3]
    assert answers == [-1, -1, -2, -2, -3, -3]
