"""The prefix cache of `decode` through a real tritonserver: a conversation prefills what is new of each turn."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hiscore.launcher import Server
from tests.server.conftest import StartServer
from tests.server.counters import settled
from tests.server.generation import whole
from tests.support.tiny_models import CONTEXT

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

BLOCK = 32
TURNS, QUESTION, ANSWER = 10, 200, 60


def converse(server: Server) -> list[tuple[int, int]]:
    """Of each turn: tokens of its prompt, and how many of them `usage` says were found."""
    random, text, turns = np.random.default_rng(0), list[int](), []
    for _ in range(TURNS):
        text += random.integers(3, 200, QUESTION).tolist()
        answer = whole(server, {"input_ids": text}, max_tokens=ANSWER, ignore_eos=True)
        assert answer["usage"][::2] == [len(text), ANSWER]
        turns.append((len(text), answer["usage"][1]))
        text += answer["output_ids"]
    assert len(text) <= CONTEXT
    return turns


def counted(server: Server) -> tuple[int, int]:
    """Prompt tokens that were prefilled and that were found."""
    counts = settled(server)
    prefilled, found = (
        counts["decode", f"hiscore_decode_{name}_tokens_total"] for name in ("prompt", "cached")
    )
    return prefilled, found


@pytest.mark.parametrize(
    "settings",
    [{}, {"selector": "auto", "prefix_cache": True}, {"selector": "dense"}, {"prefix_cache": False}],
    ids=str,
)
def test_each_turn_prefills_what_is_new(
    start_server: StartServer, tiny_lm: Path, settings: dict[str, Any]
) -> None:
    """By default, too. Without the cache, as the control, everything."""
    server = start_server(tiny_lm, models="decode", host_kv_bytes=2**28, **settings)
    turns = converse(server)
    prompts, found = (sum(each) for each in zip(*turns, strict=True))
    assert counted(server) == (prompts - found, found)
    if settings.get("prefix_cache", True):
        # The last token of an answer was never fed, and blocks are whole.
        assert all(prompt - found <= QUESTION + BLOCK for prompt, found in turns)
        assert prompts - found <= TURNS * (QUESTION + BLOCK)
    else:
        assert found == 0
