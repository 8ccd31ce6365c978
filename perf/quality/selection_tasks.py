"""The tasks by which selectors are judged: real texts to continue, and pass keys to find in a text.

The prompt of a task is prefilled, which is dense with every selector; the rest is fed token by token, so that only
what decode steps predict is judged.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hiscore.arrays import Int32

Encode = Callable[[str], list[int]]

QUESTION = "\n\nWhat is the pass key? The pass key is"
KEYS = ("71432", "20985", "94617", "38250", "56173", "80346", "13794", "67528", "42901")
DEPTHS = (0.1, 0.5, 0.9)


@dataclass(frozen=True)
class Task:
    """A text of which the last tokens are judged."""

    name: str
    prompt: Int32
    """Prefilled."""
    rest: Int32
    """Fed by decode steps."""
    judged: int
    """Tokens at the end of `rest` that are compared with predictions."""

    def __post_init__(self) -> None:
        if not 0 < self.judged < len(self.rest):
            raise ValueError(f"{self.name}: {self.judged} of {len(self.rest)} tokens cannot be judged")


def documents(reviews: Path | None) -> dict[str, str]:
    """Long real texts that come with Python, and film reviews if there is a file of them.

    The texts differ a little between versions of Python.
    """
    import argparse
    from pydoc_data.topics import topics

    texts = {
        "Python reference, compound statements": topics["compound"],
        "Python reference, types": topics["types"],
        "source of argparse": inspect.getsource(argparse),
    }
    if reviews:
        found = [item["text"] for item in json.loads(reviews.read_text())["held_out"]]
        texts["film reviews"] = "\n\n".join(found)
    return texts


def continuations(texts: dict[str, str], encode: Encode, prompt: int, tokens: int) -> list[Task]:
    """A task for each text: predict the `tokens` that follow its first `prompt` tokens.

    Raises:
        ValueError: A text is too short.
    """
    tasks = []
    for name, text in texts.items():
        ids = np.array(encode(text), np.int32)
        if len(ids) < prompt + tokens:
            raise ValueError(f"'{name}' has {len(ids)} tokens, {prompt + tokens} are needed")
        tasks.append(Task(name, ids[:prompt], ids[prompt : prompt + tokens], tokens - 1))
    return tasks


def needles(filler: str, encode: Encode, lengths: Sequence[int]) -> list[Task]:
    """Pass keys hidden at each depth in filler texts of each length, to be recalled digit by digit.

    Raises:
        ValueError: The filler is too short.
    """
    hay = encode(filler)
    tasks = []
    for at, (length, depth) in enumerate((length, depth) for length in lengths for depth in DEPTHS):
        key = KEYS[at % len(KEYS)]
        needle = encode(f"\n\nThe pass key is {key}. Remember it. {key} is the pass key.\n\n")
        room = length - len(needle)
        if not 0 < room <= len(hay):
            raise ValueError(f"the filler has {len(hay)} tokens, {room} are needed")
        before = int(depth * room)
        prompt = hay[:before] + needle + hay[before:room]
        question, answer = encode(QUESTION), encode(f" {key}")
        name = f"pass key in {length} tokens, at {depth:.0%}"
        # The first token of the answer is the space.
        tasks.append(Task(name, np.array(prompt, np.int32), np.array(question + answer, np.int32), len(key)))
    return tasks
