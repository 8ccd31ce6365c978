"""Quantised checkpoints of each method through the real `scorer`, against transformers with the dequantised."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hiscore.launcher import Server
from tests.server.fleet import fleet
from tests.server.wire import score_tokens
from tests.support import quantised, tiny_models
from tests.support.comparison import check, truth_of
from tests.support.quantised import SCHEMES
from tests.support.strategies import random_tokens

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

LABELS = [5, 77, 401]
SERVED = [
    "fp8-block",
    "awq",
    "gptq-desc-act",
    "compressed-int4-zeros",
    "modelopt-nvfp4",
    "bitsandbytes-nested",
]
MXFP4 = "mxfp4"


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """By scheme: the quantised checkpoint, and the dense one with the same weights."""
    made = {}
    for scheme in SERVED:
        directory = tmp_path_factory.mktemp(scheme)
        dense = tiny_models.make("llama", directory / "dense")
        leave = ("layers.1.self_attn",)
        made[scheme] = quantised.make(dense, SCHEMES[scheme](), directory / "quantised", leave), dense
    directory = tmp_path_factory.mktemp(MXFP4)
    dense = tiny_models.make("gpt-oss", directory / "dense")
    made[MXFP4] = quantised.make_mxfp4(dense, directory / "quantised"), dense
    return made


@pytest.fixture(scope="module")
def server(
    checkpoints: dict[str, tuple[Path, Path]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    log = tmp_path_factory.mktemp("logs") / "server.log"
    sources = {scheme: checkpoint for scheme, (checkpoint, _) in checkpoints.items()}
    with fleet("scorer", sources, log, max_batch_tokens=64, query_cache_bytes=2**20) as server:
        yield server


@pytest.mark.parametrize("scheme", [*SERVED, MXFP4])
def test_scores_are_those_of_the_dequantised_weights(
    scheme: str, server: Server, checkpoints: dict[str, tuple[Path, Path]]
) -> None:
    call = random_tokens(np.random.default_rng(0), 13, [1, 7, 20, 3, 70], tiny_models.VOCABULARY)
    found = score_tokens(server, call, LABELS, "grpc", model=f"scorer-{scheme}").scores
    truth = truth_of(checkpoints[scheme][1]).scores(call.query, call.items, LABELS)
    check(found, truth, over_vocabulary=True)
