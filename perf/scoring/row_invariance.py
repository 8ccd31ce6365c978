"""Find out if a score depends on what shares its batch: bits of products by number of rows, and scores by batch.

usage: python -m perf.scoring.row_invariance [--models NAME,...] [--dtypes fp8,...] [--out DIR]    (one CUDA GPU)

A product's rows are compared, bit by bit, with the same rows among 8,192, for every number of rows that the runner
uses: as cuBLAS chooses, and after `device.fix_product_sums`. The scores of an item sent alone are compared with
those in its call of ten, and in a batch of twelve calls that takes several forwards.
"""

from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hiscore.arrays import Float32
from hiscore.device.copies import fix_product_sums
from hiscore.prefill.row_counts import MIN_ROWS, capture_sizes
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.machine.facts import process_facts
from perf.machine.graph_timer import microseconds
from perf.models import random_checkpoint
from perf.models.geometries import GEOMETRIES
from perf.script import arguments, by_comma, write_json

MOST_ROWS = 8_192
FEW_ROWS = [1, 2, 5, 10, 17, 33, 64]
TIMED_ROWS = [64, 128, 192, 256, 320, 1_920, MOST_ROWS]
CALLS, QUERY, ITEMS, ITEM = 12, 120, 10, 180


def shapes_of(model: str) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of a layer's products."""
    g = GEOMETRIES[model]
    hidden, q, kv = (
        g["hidden_size"],
        g["num_attention_heads"] * g["head_dim"],
        g["num_key_value_heads"] * g["head_dim"],
    )
    inner = g["intermediate_size"]
    return {
        "qkv": (hidden, q + 2 * kv),
        "output": (q, hidden),
        "gate_up": (hidden, 2 * inner),
        "down": (inner, hidden),
    }


def differing_rows(x: Tensor, weight: Tensor) -> list[int]:
    """The numbers of rows at which the product has other bits than among all rows."""
    whole = torch.nn.functional.linear(x, weight)
    counts = [*FEW_ROWS, *capture_sizes(MOST_ROWS)]
    return [n for n in counts if not torch.equal(torch.nn.functional.linear(x[:n], weight), whole[:n])]


def times_us(x: Tensor, weight: Tensor) -> dict[int, float]:
    """Microseconds of the product by number of rows."""
    return {
        n: microseconds([partial(torch.nn.functional.linear, x[:n], weight)] * 4, warmup_ms=1, measured_ms=4)
        for n in TIMED_ROWS
    }


def products(shapes: dict[str, tuple[int, int]]) -> dict[str, Any]:
    """By product: where bits differ, and times."""
    measured = {}
    for name, (inputs, outputs) in shapes.items():
        x = torch.randn(MOST_ROWS, inputs, device="cuda", dtype=torch.bfloat16)
        weight = torch.randn(outputs, inputs, device="cuda", dtype=torch.bfloat16) * 0.02
        measured[name] = {"rows with other bits": differing_rows(x, weight), "us": times_us(x, weight)}
    return measured


def requests(seed: int, vocabulary: int, item: int = ITEM) -> list[ScoreRequest]:
    """Calls of one query and ten items of so many tokens."""
    rng = np.random.default_rng(seed)
    lengths = np.full(ITEMS, item, np.int64)
    labels = np.array([11, 12], np.int32)
    return [
        ScoreRequest(
            MultiItemPrompt(
                rng.integers(0, vocabulary, QUERY + ITEMS * item).astype(np.int32), QUERY, lengths
            ),
            labels,
            ScoreOptions(apply_softmax=True),
        )
        for _ in range(CALLS)
    ]


def alone(request: ScoreRequest) -> list[ScoreRequest]:
    """Its items, one call each."""
    query, items = np.split(request.prompt.tokens, [QUERY])
    return [
        ScoreRequest(
            MultiItemPrompt(np.concatenate((query, item)), QUERY, np.array([len(item)], np.int64)),
            request.labels,
            request.options,
        )
        for item in items.reshape(ITEMS, -1)
    ]


def scores(scorer: Scorer, batch: list[ScoreRequest]) -> Float32:
    """All rows of a batch's scores."""
    rows = []
    for answer in scorer.score(batch)[0]:
        if isinstance(answer, Exception):
            raise answer
        rows.append(answer.scores)
    return np.concatenate(rows)


def moved(model: str, dtype: str) -> dict[str, float]:
    """Measure how far scores move with their batch: largest differences, and the spread of the scores."""
    with TemporaryDirectory() as directory, random_checkpoint.in_memory("cuda"):
        random_checkpoint.write_config(model, Path(directory), MOST_ROWS)
        scorer = load_decoder_scorer(Path(directory), "cuda", dtype, MOST_ROWS, query_cache_bytes=2**30)
    calls = requests(0, GEOMETRIES[model]["vocab_size"])
    one_by_one = np.concatenate([scores(scorer, [item]) for call in calls for item in alone(call)])
    in_calls = np.concatenate([scores(scorer, [call]) for call in calls])
    in_batch = scores(scorer, calls)
    return {
        "call": float(np.abs(in_calls - one_by_one).max()),
        "batch": float(np.abs(in_batch - one_by_one).max()),
        "standard deviation": float(one_by_one[:, 0].std()),
    }


def main() -> None:
    """Measure; writes row_invariance.json after every model."""
    parser = arguments(__doc__, "row_invariance.json", required=False)
    parser.add_argument("--models", type=by_comma, default=["qwen3-0.6b", "qwen3-8b"], help="by comma")
    parser.add_argument("--dtypes", type=by_comma, default=["bfloat16", "fp8"], help="by comma")
    options = parser.parse_args()
    results: dict[str, Any] = {"machine": process_facts(options.commit), "least rows": MIN_ROWS}
    for model in options.models:
        results[model] = {"cuBLAS's choice": products(shapes_of(model))}
    fix_product_sums()
    for model in options.models:
        results[model]["fixed"] = products(shapes_of(model))
        results[model]["scores"] = {dtype: moved(model, dtype) for dtype in options.dtypes}
        print(model, results[model]["scores"], flush=True)
        for how in ("cuBLAS's choice", "fixed"):
            for name, measured in results[model][how].items():
                times = ", ".join(f"{rows}: {us:.1f}" for rows, us in measured["us"].items())
                print(
                    f"  {how}, {name}: other bits at {measured['rows with other bits']}; us by rows {times}"
                )
        if options.out:
            write_json(options.out / "row_invariance.json", results)


if __name__ == "__main__":
    main()
