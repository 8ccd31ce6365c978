"""Families and quantised checkpoints of every kind through the real `scorer`, against transformers item by item.

The token budget is tiny, so that most calls are split over several forwards. The unit tests of the scorer make the
same comparison for all families and schemes, with more shapes.
"""

from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from tests.server.fleet import fleet
from tests.server.wire import score_tokens
from tests.support import quantised
from tests.support.comparison import check, truth_of
from tests.support.quantised import SCHEMES
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_models import VOCABULARY, make

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 77, 401]
FAMILIES = ("qwen2", "gemma2", "qwen3-moe", "qwen3-hybrid")
"""Biases, caps and windows, experts, and states in place of keys: each is a process of some 300 MiB."""
QUANTISED = (
    "fp8-block",
    "awq",
    "gptq-desc-act",
    "compressed-int4-zeros",
    "modelopt-nvfp4",
    "bitsandbytes-nested",
)
MXFP4 = "mxfp4"
NAMES = [*FAMILIES, *QUANTISED, MXFP4]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """By name: the checkpoint that is served, and a dense one with the same weights."""
    directory = tmp_path_factory.mktemp("families")
    made = {}
    for name in NAMES:
        family = "gpt-oss" if name == MXFP4 else name if name in FAMILIES else "llama"
        dense, served = make(family, directory / f"{name}-dense"), directory / name
        if name in QUANTISED:
            quantised.make(dense, SCHEMES[name](), served, leave=("layers.1.self_attn",))
        elif name == MXFP4:
            quantised.make_mxfp4(dense, served)
        made[name] = (dense if name in FAMILIES else served), dense
    return made


@pytest.fixture(scope="module")
def server(
    checkpoints: dict[str, tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    served = {name: checkpoint for name, (checkpoint, _) in checkpoints.items()}
    log = tmp_path_factory.mktemp("logs") / "server.log"
    with fleet("scorer", served, log, max_batch_tokens=64, query_cache_bytes=2**20) as running:
        yield running


@pytest.mark.parametrize("name", NAMES)
def test_scores_equal_transformers_and_of_a_wrong_layout_they_do_not(
    name: str, server: Server, checkpoints: dict[str, tuple[Path, Path]]
) -> None:
    def scores(call: Tokens) -> np.ndarray:
        return score_tokens(server, call, LABELS, model=f"scorer-{name}", apply_softmax=True).scores

    call = random_tokens(np.random.default_rng(4), 13, [3, 7, 7, 70], VOCABULARY)
    expected = truth_of(checkpoints[name][1]).scores(call.query, call.items, LABELS, apply_softmax=True)
    check(scores(call), expected)
    # Plain causal attention over the packed sequence: every item sees those before it.
    seen = list(accumulate(call.items))
    for wrong in (Tokens(call.query, call.items[::-1]), Tokens(call.query, seen)):
        with pytest.raises(AssertionError):
            check(scores(wrong), expected)
