"""The beginning that all prompts of a call have in common."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Prompts:
    """Prompts as the scorer takes them, all of which begin with the token ids of `query`."""

    query: list[int]
    items: list[list[int]]


def share(prompts: Sequence[list[int]]) -> Prompts:
    """Split off what all prompts begin with; something is left of each."""
    if not prompts:
        return Prompts([], [])
    common = common_length(prompts)
    return Prompts(prompts[0][:common], [ids[common:] for ids in prompts])


def common_length(prompts: Sequence[list[int]] | Sequence[str]) -> int:
    """Count the ids, or characters, with which all prompts begin, so that something is left of each."""
    low, high = min(prompts), max(prompts)
    longest = min(map(len, prompts)) - 1
    return next((i for i in range(longest) if low[i] != high[i]), max(longest, 0))
