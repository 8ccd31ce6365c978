"""Whole workers against transformers' cached decode: logits of every step of concurrent sequences."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from hiscore.decoding.sparse import residency
from hiscore.decoding.worker.worker import CacheWorker
from tests.support import tiny_dsa, tiny_models
from tests.support.decode_truth import DecodeTruth
from tests.support.decoding import build, prompt
from tests.support.tiers import first_of
from tests.support.worker_driver import Driver

pytestmark = pytest.mark.slow  # whole models

# Sums of 60 terms in another order, with 53 bits; norms and rotary tables are float32 in both.
EXACT = 1e-9
# With 24 bits: what the contract allows.
SINGLE = 1e-4
# transformers computes the router's scores and gates in float32, and so do we, from sums in another order.
ROUTED = 5e-6
# A state sums up all tokens, and experts read it: transformers, which always computes the rule with 24 bits, is
# 1.2e-4 from what 53 bits give.
SUMMED = 3e-4
# A token seen or left out, a position off by one.
WRONG = 1e-2

LENGTHS = (60, 7, 33)
STEPS = 6
# Enough to select all of these, and too little to keep all that the longest may become.
EVERYTHING = {"top_k": 224, "buffer": 224}
LONGER = (200, 7, 33)


@pytest.fixture(scope="module")
def truth(path: Callable[[str], Path]) -> Callable[..., DecodeTruth]:
    return cache(lambda family, dtype, top_k=None: DecodeTruth(path(family), dtype, top_k))


def decode(
    worker: CacheWorker, lengths: Sequence[int], cold: bool
) -> tuple[list[Tensor], list[list[int]], int]:
    """Sequences in the same steps, greedy: logits [1 + steps, vocabulary] and tokens of each, and the misses."""
    driver = Driver(worker)
    admitted = [driver.admit(prompt(length, seed=length), 100) for length in lengths]
    seq_indices, found = (
        [seq_index for seq_index, _ in admitted],
        [torch.stack([logits for _, logits in admitted])],
    )
    for _ in range(STEPS):
        found.append(driver.step(seq_indices, cold=cold))
    for seq_index in seq_indices:
        driver.leave(seq_index)
    logits = torch.stack(found, 1)
    return list(logits.cpu()), logits[:, :-1].argmax(-1).tolist(), driver.misses


def largest_error(
    worker: CacheWorker, truth: DecodeTruth, cold: bool = False, lengths: Sequence[int] = LENGTHS
) -> tuple[float, int]:
    logits, tokens, misses = decode(worker, lengths, cold)
    expected = [truth.follow(prompt(n, seed=n), fed) for n, fed in zip(lengths, tokens, strict=True)]
    errors = [float((a - b).abs().nan_to_num(1e9).max()) for a, b in zip(logits, expected, strict=True)]
    return max(errors), misses


def bound(family: str, dtype: torch.dtype) -> float:
    if dtype == torch.float32:
        return SUMMED if family in tiny_models.RECURRENT else SINGLE
    routed = family.endswith("experts") or family.startswith(("qwen3-moe", "mixtral", "gpt-oss"))
    return ROUTED if routed else EXACT


# Norms and rotary embeddings of other families are float32 in transformers even where all else is float64.
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        *((family, torch.float64) for family in tiny_models.FIRST if family in tiny_models.ATTENDING),
        *((family, torch.float32) for family in tiny_models.DECODED),
        ("deepseek-v3-experts", torch.float64),
    ],
)
def test_dense_is_transformers_cached_decode(path: Any, truth: Any, family: str, dtype: torch.dtype) -> None:
    error, misses = largest_error(build(path(family), "dense", dtype=dtype), truth(family, dtype))
    assert error < bound(family, dtype)
    assert misses == 0


@pytest.mark.parametrize("dtype", first_of(torch.float64, torch.float32))
@pytest.mark.parametrize("family", tiny_dsa.INDEXED)
def test_an_indexer_is_that_of_transformers(path: Any, truth: Any, family: str, dtype: torch.dtype) -> None:
    """60 tokens, of which its indexer selects 16."""
    error, misses = largest_error(build(path(family), "dsa", dtype=dtype), truth(family, dtype))
    assert error < bound(family, dtype)
    assert misses > 50


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "gemma2", "gemma3"])
@pytest.mark.parametrize("cold", [False, True])
def test_exact_is_its_definition(path: Any, truth: Any, family: str, cold: bool) -> None:
    """60 tokens, of which 16 are selected: transformers' forward with the attention that the contract defines."""
    worker = build(path(family), "exact", dtype=torch.float64)
    error, misses = largest_error(worker, truth(family, torch.float64, 16), cold)
    assert error < EXACT
    assert misses > 50


@pytest.mark.parametrize("selector", ["quest", "exact"])
@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("llama-biased", torch.float64),
        ("gemma2", torch.float64),
        # Of other block designs; glm4's keys are reordered.
        ("glm4", torch.float32),
        ("olmo2", torch.float32),
        ("command-r-plus", torch.float32),
        ("cohere2", torch.float32),
    ],
)
def test_with_all_selected_every_selector_is_transformers(
    path: Any, truth: Any, family: str, dtype: torch.dtype, selector: str
) -> None:
    worker = build(path(family), selector, **EVERYTHING, dtype=dtype)
    error, misses = largest_error(worker, truth(family, dtype), True, LONGER)
    assert error < bound(family, dtype)
    assert misses > 0


# Controls: each is far outside the bounds.


def test_one_token_less_is_told_apart(path: Any, truth: Any) -> None:
    worker = build(path("llama"), "exact", dtype=torch.float64)
    assert largest_error(worker, truth("llama", torch.float64, 15))[0] > WRONG
    assert largest_error(worker, truth("llama", torch.float64))[0] > WRONG


def test_a_cleared_index_is_told_apart(path: Any, truth: Any) -> None:
    worker = build(path("deepseek"), "dsa", dtype=torch.float64, poison=False)
    index, step = worker._cache.index, worker.step

    def clear_and_step(rows: Any) -> Any:
        with torch.inference_mode():
            index.zero_()
        return step(rows)

    worker.step = clear_and_step  # type: ignore[method-assign]
    assert largest_error(worker, truth("deepseek", torch.float64))[0] > WRONG


def test_a_swap_left_out_is_told_apart(path: Any, truth: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "copy_pages", lambda *_: None)
    worker = build(path("llama"), "exact", dtype=torch.float64, poison=False)
    assert largest_error(worker, truth("llama", torch.float64, 16))[0] > WRONG


def test_another_window_is_told_apart(path: Any, truth: Any) -> None:
    worker = build(path("mistral"), "dense", dtype=torch.float64)
    shape = worker._ops._shape
    object.__setattr__(shape, "windows", (6,) * len(shape.windows))
    assert largest_error(worker, truth("mistral", torch.float64))[0] > WRONG
