"""What the scorer takes of a GPU, against its plan: at the geometry of Qwen3-0.6B, with random weights."""

import gc
from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.device.copies import free_bytes
from hiscore.models.activations import output_bytes
from hiscore.models.config import read_architecture
from hiscore.prefill.row_counts import capture_sizes, output_rows
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.memory import CUDA_BYTES, plan_memory, pool_sizes
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.server.plan import MemoryLine
from perf.models import random_checkpoint
from perf.models.random_checkpoint import config_of
from tests.support.strategies import random_tokens

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]
BUDGET = 16_384
LABELS = np.array([5, 77], np.int32)


def test_the_scorer_takes_what_it_plans(tmp_path: Path) -> None:
    """Prints the table of docs/memory.md as it was measured: run with -s."""
    checkpoint = random_checkpoint.write_config("qwen3-0.6b", tmp_path)
    a, _ = read_architecture(checkpoint)
    torch.cuda.init()
    # Handed back in between, what other tests have left would count as not taken.
    gc.collect()
    torch.cuda.empty_cache()
    device = torch.device("cuda", torch.cuda.current_device())
    before, of_others = free_bytes(device), torch.cuda.memory_allocated(device)
    with random_checkpoint.in_memory("cuda"):
        scorer = load_decoder_scorer(checkpoint, "cuda", "bfloat16", BUDGET, query_cache_bytes=0)
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    allocated = torch.cuda.memory_allocated(device) - of_others
    call = random_tokens(np.random.default_rng(0), 120, [180] * 300, a.vocab_size)
    answers, _ = scorer.score([ScoreRequest(call.prompt(), LABELS, ScoreOptions())])
    assert np.isfinite(answers[0].scores).all()
    torch.cuda.synchronize()
    taken = before - free_bytes(device)
    sizes = pool_sizes(a, 2, BUDGET, 0)
    weights = (
        torch.cuda.memory_allocated(device)
        - scorer.runner.pool.nbytes
        - output_bytes(a, output_rows(BUDGET, in_slices=True), 2)
    )
    plan = plan_memory(str(device), a, 2, MemoryLine("weights", weights), BUDGET, sizes)
    print(plan.table(before), f"measured {taken / 2**30:.2f} GiB", sep="\n")
    # All of it is in the plan; and the plan is not so wide that models are refused that would fit.
    assert taken <= plan.total
    assert plan.total - CUDA_BYTES <= 1.3 * taken
    # Outputs of their own for each graph would have been noticed.
    shared, own = (
        output_bytes(a, output_rows(BUDGET, in_slices=True), 2),
        sum(output_bytes(a, rows, 2) for rows in capture_sizes(BUDGET)),
    )
    stored = 2 * sum(prod(shape) for shape in random_checkpoint.tensors(config_of("qwen3-0.6b")).values())
    unplanned = allocated - stored - scorer.runner.pool.nbytes - shared
    tables = 2**28  # rotary tables, inputs of graphs
    assert unplanned < tables < own - shared
