"""Scorer and decode beside each other at the defaults: the default model in 4 GiB, large ones on GPUs."""

from pathlib import Path

import pytest

from hiscore.scoring.batched_scorer import DEFAULT_BATCH_TOKENS
from hiscore.scoring.memory import default_cache_bytes, plan_memory, pool_sizes
from hiscore.server.ledger import Ledger
from hiscore.server.plan import GIB, MemoryExceeded, MemoryLine
from hiscore.settings import CacheSettings
from tests.support.geometries import GEOMETRIES, architecture
from tests.unit.decoding.memory.test_plan import CPU, CUDA, planned
from tests.unit.scoring.test_memory import ROOT, plan

NAME = "SmolLM2-135M"
# What tritonserver and three processes with Python and torch leave of 4 GiB.
FREE_GIB = 3.0


def claim_both(directory: Path, free_gib: float, shared: str) -> int:
    """Bytes that both claim together."""
    free, a = int(free_gib * GIB), architecture(NAME)
    ledger = Ledger(directory)
    ledger.free("host", lambda: free)
    budget = DEFAULT_BATCH_TOKENS["cpu"]
    sizes = pool_sizes(a, 4, budget, default_cache_bytes(free))
    weights = MemoryLine("weights", int(GEOMETRIES[NAME].parameters * 4), shared=shared)
    scorer = plan_memory("host", a, 4, weights, budget, sizes)
    ledger.claim("scorer", scorer)
    _, cache_config, (decode,) = planned(NAME, CPU, 0, free_gib)
    lines = tuple(weights if line.name == "weights" else line for line in decode.lines)
    ledger.claim("decode", type(decode)(decode.place, lines))
    assert cache_config.context_length >= 4_096
    return scorer.total + decode.total - (weights.bytes if shared else 0)


def test_scorer_and_decode_start_in_4_gib(tmp_path: Path) -> None:
    assert claim_both(tmp_path, FREE_GIB, "weights") <= FREE_GIB * GIB


def test_less_is_refused_with_the_numbers(tmp_path: Path) -> None:
    """The control: before, decode alone planned 10 GiB in a container of 3, and was killed."""
    with pytest.raises(MemoryExceeded, match=r"host has .* left, .* are needed"):
        claim_both(tmp_path, FREE_GIB / 2, "weights")


GPUS = {"24 GB": 23.5, "80 GB": 79.1, "141 GB": 139.8}


def longest_that_fits(name: str, gpu_gib: float) -> str:
    """The longest context of some at which both fit with one copy of the weights, and what they take."""
    for max_context in (32_768, 16_384, 8_192, 4_096):
        scorer = plan(name, gpu_gib, max_context)
        weights = next(line.bytes for line in scorer.lines if line.name == "weights")
        settings = CacheSettings(selector="quest", max_context=max_context)
        try:
            _, _, (_, decode) = planned(name, CUDA, gpu_gib, 200, settings)
        except ValueError:
            continue
        both = scorer.total + decode.total - weights
        if both <= gpu_gib * GIB:
            return f"{max_context:,} ({both / GIB:.1f} GiB)"
    return "no"


@pytest.mark.parametrize("name", [name for name in GEOMETRIES if name != NAME])
def test_the_page_on_memory_says_what_fits(name: str) -> None:
    cells = " | ".join(longest_that_fits(name, gib) for gib in GPUS.values())
    assert f"| {name} | {cells} |" in (ROOT / "docs" / "memory.md").read_text()
