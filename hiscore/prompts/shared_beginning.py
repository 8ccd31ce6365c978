"""The beginning that all prompts of a call have in common."""

from collections.abc import Sequence
from typing import NamedTuple

from hiscore.arrays import Row, common_prefix


class Prompts(NamedTuple):
    """Prompts as the scorer takes them, all of which begin with the token ids of `query`."""

    query: list[int]
    items: list[list[int]]


def share(prompts: Sequence[list[int]]) -> Prompts:
    """Split off what all prompts begin with; something is left of each."""
    if not prompts:
        return Prompts([], [])
    common = common_length(prompts)
    return Prompts(prompts[0][:common], [ids[common:] for ids in prompts])


def common_length(prompts: Sequence[Row]) -> int:
    """Count the ids, or characters, with which all prompts begin, so that something is left of each."""
    return max(0, min(common_prefix(prompts), min(map(len, prompts)) - 1))
