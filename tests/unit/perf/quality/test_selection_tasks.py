"""Texts to continue and pass keys to find."""

import pytest

from perf.quality.selection_tasks import QUESTION, Task, continuations, needles


def test_tasks_say_what_is_judged() -> None:
    def encode(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    tasks = needles("x" * 500, encode, [200, 400])
    assert [len(task.prompt) for task in tasks] == [200] * 3 + [400] * 3
    for task in tasks:
        prompt, rest = ("".join(map(chr, ids)) for ids in (task.prompt, task.rest))
        key = rest[-task.judged :]
        assert prompt.count(key) == 2
        assert rest == f"{QUESTION} {key}"
        assert "pass key" not in prompt.replace(f"The pass key is {key}", "").replace(
            f"{key} is the pass key", ""
        )
    (text,) = continuations({"a": "y" * 50}, encode, 30, 20)
    assert (len(text.prompt), len(text.rest), text.judged) == (30, 20, 19)
    with pytest.raises(ValueError, match="'a' has 50 tokens, 51 are needed"):
        continuations({"a": "y" * 50}, encode, 31, 20)
    with pytest.raises(ValueError, match="cannot be judged"):
        Task("t", text.prompt, text.rest[:1], 1)
