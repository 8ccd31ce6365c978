"""The machine's ceilings (matrix products, copies) and how near the scorer's forwards come to them.

usage: python -m perf.scoring.roofline --out DIR [--checkpoint DIR]

On a GPU the forwards are those of Qwen3-0.6B's geometry with random weights, in bfloat16; on a CPU those of the
checkpoint (default: the demo's model), in float32. Times are medians after a second of the same work, so that a
chip that lowers its clock under load is measured at the clock it sustains.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.checkpoint import resolve
from hiscore.models.config import Architecture, read_architecture
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from perf.loadgen.scorer_calls import Shape
from perf.machine.facts import process_facts
from perf.models import checkpoints
from perf.script import arguments, write_json

WARM_S = 1.0
MEASURED_S = 2.0
LEAST = 5
# n of an n x n x n product of random numbers (zeros draw less power and run faster), and MiB of a copy.
PRODUCTS = {"cuda": (2_048, 4_096, 8_192, 16_384), "cpu": (512, 1_024, 2_048)}
COPIES = {"cuda": (256, 2_048), "cpu": (64, 512)}
CALL = {"cuda": Shape(120, 10, 180), "cpu": Shape(24, 3, 8)}
PROMPT = {"cuda": Shape(300, 1, 0), "cpu": Shape(32, 1, 0)}
CALLS = {"cuda": (1, 2, 8), "cpu": (1, 4)}
BUDGET = 16_384


def seconds(work: Callable[[], object]) -> float:
    """Median time of `work` until the GPU is done with it, after warming up for `WARM_S`."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else (lambda: None)

    def once() -> float:
        begin = time.perf_counter()
        work()
        wait()
        return time.perf_counter() - begin

    until = time.perf_counter() + WARM_S
    while time.perf_counter() < until:
        once()
    times: list[float] = []
    while len(times) < LEAST or sum(times) < MEASURED_S:
        times.append(once())
    return statistics.median(times)


def products(device: str, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Measure square products in FLOP/s."""
    for n in PRODUCTS[device]:
        a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
        out = torch.empty_like(a)
        taken = seconds(partial(torch.mm, a, b, out=out))
        yield {"shape": f"{n} x {n} x {n}", "flops": 2 * n**3 / taken}


def copies(device: str) -> Iterator[dict[str, Any]]:
    """Measure copies in bytes/s: read plus written on one device, moved between host and device."""
    for mib in COPIES[device]:
        here = torch.zeros(mib * 2**20, dtype=torch.uint8, device=device)
        other = torch.zeros_like(here)
        taken = seconds(partial(other.copy_, here))
        yield {"what": "copy, read and written", "mib": mib, "bytes_per_s": 2 * here.numel() / taken}
        if device == "cuda":
            host = torch.zeros(here.shape, dtype=torch.uint8, pin_memory=True)
            for what, to, source in (("host to device", here, host), ("device to host", host, here)):
                taken = seconds(partial(to.copy_, source, non_blocking=True))
                yield {"what": what, "mib": mib, "bytes_per_s": here.numel() / taken}


def flop(of: Architecture, shape: Shape, calls: int, labels: int) -> float:
    """FLOP of a forward: products with weights, and attention's two products for each visible pair of tokens.

    In the last layer only each item's last token is computed beyond its keys and values. Norms and rotary
    embeddings are not counted.

    Args:
        labels: Rows of the head that are computed.
    """
    q, kv = of.heads * of.head_dim, of.kv_heads * of.head_dim
    rows, scored = calls * shape.tokens, calls * shape.items
    key_value = 2 * of.hidden_size * 2 * kv
    rest = 2 * of.hidden_size * (2 * q + 3 * of.intermediate_size)
    products = of.layers * rows * key_value + ((of.layers - 1) * rows + scored) * rest

    def triangle(n: int) -> int:
        return n * (n + 1) // 2

    pairs = calls * (triangle(shape.query) + shape.items * (shape.query * shape.item + triangle(shape.item)))
    last = scored * (shape.query + shape.item)
    attention = 4 * q * ((of.layers - 1) * pairs + last)
    return float(products + attention + 2 * scored * of.hidden_size * labels)


def weight_bytes(of: Architecture, itemsize: int) -> int:
    """Bytes of the layers' weights, which a forward must read once."""
    q, kv = of.heads * of.head_dim, of.kv_heads * of.head_dim
    return itemsize * of.layers * of.hidden_size * (2 * q + 2 * kv + 3 * of.intermediate_size)


def forwards(checkpoint: Path, device: str) -> Iterator[dict[str, Any]]:
    """Time the scorer, from calls to scores on the host."""
    scorer = load_decoder_scorer(checkpoint, device, max_batch_tokens=BUDGET, query_cache_bytes=0)
    of, _ = read_architecture(checkpoint)
    rng, labels = np.random.default_rng(0), np.array([9, 7], np.int32)

    def batch(shape: Shape, calls: int) -> list[ScoreRequest]:
        drawn = rng.integers(0, of.vocab_size, (calls, shape.tokens)).astype(np.int32)
        items = np.full(shape.items, shape.item)
        options = ScoreOptions(apply_softmax=True)
        return [
            ScoreRequest(MultiItemPrompt(tokens, shape.query, items), labels, options) for tokens in drawn
        ]

    for shape, calls in ((PROMPT[device], 1), *((CALL[device], calls) for calls in CALLS[device])):
        yield {
            "name": f"{calls} x ({shape})",
            "seconds": seconds(partial(lambda shape, calls: scorer.score(batch(shape, calls)), shape, calls)),
            "flop": flop(of, shape, calls, len(labels)),
            "weight_bytes": weight_bytes(of, scorer.computation.head._weight.dtype.itemsize),
        }


@contextmanager
def subject(device: str, checkpoint: Path | None) -> Iterator[Path]:
    """The checkpoint to measure; on a GPU random weights with a real geometry, unless one is given."""
    if checkpoint or device == "cpu":
        yield checkpoint or resolve()
        return
    with tempfile.TemporaryDirectory() as directory:
        checkpoints.write(Path(directory), "cuda", None)
        yield Path(directory)


def main() -> int:
    """Measure; writes roofline.json."""
    parser = arguments(__doc__, "roofline.json")
    parser.add_argument("--checkpoint", type=Path)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    results: dict[str, Any] = {
        "machine": process_facts(options.commit),
        "dtype": str(dtype).removeprefix("torch."),
        "matmul": [],
        "copy": [],
        "forwards": [],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with torch.inference_mode(), subject(device, options.checkpoint) as checkpoint:
        for kind, rows in (
            ("matmul", products(device, dtype)),
            ("copy", copies(device)),
            ("forwards", forwards(checkpoint, device)),
        ):
            for row in rows:
                results[kind].append(row)
                print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    write_json(options.out / "roofline.json", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
