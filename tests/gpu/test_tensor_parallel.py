"""The scorer and decode on two GPUs against one: sums by NCCL, inside CUDA graphs.

Run it alone: `pytest tests/gpu/test_tensor_parallel.py`. The first rank is this process, on the first GPU.
"""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM

from hiscore.decoding.worker.parallel_worker import ParallelWorker
from hiscore.parallel.leader import Ranks
from hiscore.prefill.cuda_runner import CudaRunner
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from tests.support import decode_rank_work, decoding, rank_work, tiny_models
from tests.support.scoring import score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import ATTENDING, VOCABULARY
from tests.unit.decoding.worker.test_worker_ranks import CALLS, SETTINGS, tokens, with_a_head_for_each_rank

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two CUDA GPUs"),
]

# As on the CPU (tests/unit/scoring/test_scorer_ranks.py): what the contract allows between batches of one call.
TOLERANCE = 2e-5
GPUS = [torch.device("cuda", index) for index in range(2)]
BUDGET = 64
SHAPES = [(13, [1, 7, 7, 0, 20, 3]), (0, [2, 1]), (70, [31, 90])]
OPTIONS = (ScoreOptions(apply_softmax=True), ScoreOptions())

# Widths of published checkpoints, with few layers and a part of the vocabulary.
WIDE_SIZES: dict[str, Any] = {"vocab_size": 32_768, "num_hidden_layers": 3, "max_position_embeddings": 4_096}
WIDE: dict[str, dict[str, Any]] = {
    "llama": {
        "model_type": "llama", "hidden_size": 4_096, "intermediate_size": 14_336, "num_attention_heads": 32,
        "num_key_value_heads": 8,
    },
    "qwen3": {
        "model_type": "qwen3", "hidden_size": 4_096, "intermediate_size": 12_288, "num_attention_heads": 32,
        "num_key_value_heads": 8, "head_dim": 128,
    },
    "qwen3-moe": {
        "model_type": "qwen3_moe", "hidden_size": 2_048, "intermediate_size": 6_144, "moe_intermediate_size": 768,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": True,
    },
    # One head of keys and values: every rank has it.
    "gemma3": {
        "model_type": "gemma3_text", "hidden_size": 1_152, "intermediate_size": 6_912, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def ranks() -> Iterator[Ranks]:
    with closing(Ranks(GPUS)) as ranks:
        # What they import for their work takes seconds in which a rank may be silent: only now is that no hang.
        for module in (rank_work, decode_rank_work):
            ranks.prepare(module.arrive)
        yield ranks


def compare(checkpoint: Path, ranks: Ranks) -> None:
    calls = [random_tokens(np.random.default_rng(0), *shape, VOCABULARY) for shape in SHAPES]
    alone = load_decoder_scorer(checkpoint, "cuda:0", "float32", BUDGET)
    together = load_decoder_scorer(checkpoint, "cuda:0", "float32", BUDGET, leader=ranks)
    assert isinstance(together.runner, CudaRunner)
    assert together.runner._graphs
    for options in (*OPTIONS, *OPTIONS):
        for one, other in zip(score(alone, calls, options), score(together, calls, options), strict=True):
            np.testing.assert_allclose(other, one, atol=TOLERANCE, rtol=0)


def test_sums_maxima_and_parts_are_those_of_all_ranks(ranks: Ranks) -> None:
    total, most, parts = ranks.do(partial(rank_work.exchange, mine=1))
    assert total.tolist() == [[3.0, 3.0]] * 3
    assert most.tolist() == [[2.0, 2.0]] * 3
    assert parts.tolist() == [[1.0, 1.0, 2.0, 2.0]] * 3


@pytest.mark.parametrize("family", ATTENDING)
def test_float32_equals_one_gpu(family: str, ranks: Ranks, tmp_path: Path) -> None:
    compare(tiny_models.make(family, tmp_path), ranks)


def test_without_one_ranks_part_of_the_sums_it_does_not(ranks: Ranks, tmp_path: Path) -> None:
    """The control."""
    checkpoint = tiny_models.make("llama", tmp_path)
    ranks.do(partial(rank_work.add_nothing, which=1))
    try:
        with pytest.raises(AssertionError):
            compare(checkpoint, ranks)
    finally:
        ranks.do(rank_work.add_again)


@pytest.mark.parametrize("geometry", WIDE)
def test_bfloat16_is_as_near_to_float32_as_one_gpu_is(geometry: str, ranks: Ranks, tmp_path: Path) -> None:
    """Real widths, the shapes of large batches. Sums of rounded parts may err twice as much as one rounded sum."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(**{**WIDE_SIZES, **WIDE[geometry]})
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(tmp_path)
    calls = [random_tokens(np.random.default_rng(0), 120, [180] * 10, WIDE_SIZES["vocab_size"])]
    options = ScoreOptions(apply_softmax=True)

    def scores(dtype: str, **leader: Any) -> np.ndarray:
        found = score(load_decoder_scorer(tmp_path, "cuda:0", dtype, 2_048, 0, **leader), calls, options)[0]
        torch.cuda.empty_cache()
        return found

    truth = scores("float32")
    assert np.ptp(truth[:, 0]) > 0  # the items do differ
    alone = np.abs(scores("bfloat16") - truth).max()
    together = np.abs(scores("bfloat16", leader=ranks) - truth).max()
    assert together <= 2 * alone + 1e-3, (together, alone)


def decode_together(ranks: Ranks, path: Path, name: str) -> ParallelWorker:
    ranks.do(
        partial(
            decode_rank_work.build_on, path=path, late=None, deaf=False, given=SETTINGS[name][1],
            dtype=torch.float32,
        ),
        wait_for_all=True,
    )  # fmt: skip
    return ParallelWorker(ranks)


@pytest.mark.parametrize("name", SETTINGS)
def test_decode_gives_the_tokens_of_one_gpu(name: str, ranks: Ranks, tmp_path: Path) -> None:
    """Steps are CUDA graphs with sums inside; so is what ranks bring each other of latents on the host."""
    family, given = SETTINGS[name]
    path = decoding.checkpoint(family, tmp_path)
    calls = [{**each, "max_tokens": 12} for each in CALLS]
    one_gpu = decoding.build(with_a_head_for_each_rank(path, len(GPUS)), *given, device="cuda:0")
    expected = tokens(one_gpu, calls)
    found = tokens(decode_together(ranks, path, name), calls)
    # In float32 a near tie may be decided the other way, and what follows differs: not in most calls.
    assert sum(one == other for one, other in zip(expected, found, strict=True)) >= len(calls) * 0.7
    assert [one[0] for one in expected] == [other[0] for other in found]


@pytest.mark.parametrize("name", ["latents", "latents, shared selections"])
def test_latents_are_on_the_host_once_and_come_from_both_ranks(
    name: str, ranks: Ranks, tmp_path: Path
) -> None:
    """The controls: one rank stores nothing, or gets nothing from the other."""
    path = decoding.checkpoint(SETTINGS[name][0], tmp_path)
    calls = [{**each, "max_tokens": 40, "sparse": True} for each in CALLS[:8]]
    one_gpu = decoding.build(path, *SETTINGS[name][1], device="cuda:0")
    pool = one_gpu._cache.host_kv
    expected = tokens(one_gpu, calls)

    def mostly_the_same(worker: ParallelWorker) -> bool:
        found = tokens(worker, calls)
        return sum(one == other for one, other in zip(expected, found, strict=True)) >= len(calls) * 0.7

    worker = decode_together(ranks, path, name)
    assert sum(ranks.do(decode_rank_work.host_bytes)) == pool.numel() * pool.element_size()
    assert mostly_the_same(worker)
    silent = decode_together(ranks, path, name)
    ranks.do(partial(decode_rank_work.offload_nothing, which=1))
    with pytest.raises(AssertionError):  # memory that was never written is NaN
        assert mostly_the_same(silent)
    ranks.do(partial(decode_rank_work.keep_to_itself, which=1))
    try:
        assert not mostly_the_same(decode_together(ranks, path, name))
    finally:
        ranks.do(decode_rank_work.merge_again)


LOSES_A_RANK = """
import signal, torch
from functools import partial
from hiscore.parallel.leader import Ranks
from tests.support import rank_work
ranks = Ranks([torch.device("cuda", index) for index in range(2)])
ranks.prepare(rank_work.arrive)
ranks.do(partial(rank_work.fill, size=2**28))
print("ready", flush=True)
ranks.do(partial(rank_work.end_on, which=1, how=int(signal.{how})))
"""


@pytest.mark.parametrize("how", ["SIGKILL", "SIGSTOP"])
def test_a_lost_rank_ends_the_instance_in_time_and_leaves_nothing(how: str) -> None:
    root = Path(__file__).parents[2]
    free = free_on_gpus()
    with subprocess.Popen(
        [sys.executable, "-c", LOSES_A_RANK.format(how=how)],
        stdout=subprocess.PIPE,
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == b"ready\n"
        (follower,) = psutil.Process(first.pid).children()
        # A GiB of each, at least, is gone.
        assert all(now <= before - 2**30 for now, before in zip(free_on_gpus(), free, strict=True))
        began = time.monotonic()
        assert first.wait(30) == 1
        # The bound; a moment for the interpreter.
        assert time.monotonic() - began < 5
    psutil.wait_procs([follower], timeout=5)
    assert not follower.is_running()
    # The driver clears memory behind a process that has ended.
    until = time.monotonic() + 10
    while any(now < before - 2**26 for now, before in zip(free_on_gpus(), free, strict=True)):
        assert time.monotonic() < until, (free_on_gpus(), free)
        time.sleep(0.1)


def free_on_gpus() -> list[int]:
    return [torch.cuda.mem_get_info(gpu)[0] for gpu in GPUS]
