"""Quality by text through a real server: labelled film reviews by `score` and by transformers.

usage: python -m perf.quality.text_scores --reviews FILE.json --out DIR [--checkpoint DIR] [--limit N]

FILE.json is what `python -m perf.quality.precision --prepare FILE.json` writes. Ten reviews are one call, text in,
labels as text. The server computes in its own precision for the device; transformers in float32, each review with
its query as one text, tokenized by itself, one prompt at a time. Exits with 1 if scores differ by more than they
may.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from hiscore.arrays import Float64
from hiscore.checkpoint import resolve
from hiscore.launcher import Server
from hiscore.launcher.device_choice import choose_device
from hiscore_client import ScoreClient
from perf.loadgen.served import server_settings
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.quality import agreement, reviews
from perf.quality.precision import CHOSEN, GROUP, PROMPTS, Prompt, slices
from perf.quality.reviews import Review
from perf.script import arguments, write_json

# Float32: the contract's tolerance. In bfloat16 the largest measured difference from float32 over 2,000 reviews is
# 0.028; a review with another one's score is off by 0.5 and more.
TOLERANCES = {"cpu": 2e-5, "cuda": 6e-2}


def by_server(url: str, texts: Sequence[Review], prompt: Prompt) -> tuple[Float64, int, int]:
    """Score reviews through the server.

    Returns:
        Probability of the positive label, float64 [reviews]; prompt tokens; of these from the cache.
    """
    results, tokens, cached = [], 0, 0
    with ScoreClient(url) as client:
        for group in slices(texts, GROUP):
            items = [f" {review.text}{prompt.question}" for review in group]
            result = client.score(prompt.query, items, labels=list(prompt.labels), apply_softmax=True)
            results.append(result.scores[:, 0].astype(np.float64))
            tokens += result.usage.prompt_tokens
            cached += result.usage.cached_tokens
    return np.concatenate(results), tokens, cached


@torch.inference_mode()
def by_transformers(
    checkpoint: Path, device: str, texts: Sequence[Review], prompt: Prompt, dtype: torch.dtype = torch.float32
) -> Float64:
    """Score reviews by transformers with its own tokenizer, one prompt at a time: float64 [reviews]."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model: Any = AutoModelForCausalLM.from_pretrained(checkpoint, dtype=dtype).to(device).eval()
    labels = [tokenizer(label, add_special_tokens=False).input_ids for label in prompt.labels]
    if any(len(ids) != 1 for ids in labels):
        raise SystemExit(f"a label is more than one token: {prompt.labels}")
    columns = torch.tensor([ids[0] for ids in labels], device=device)
    results = []
    for review in texts:
        ids = tokenizer(f"{prompt.query} {review.text}{prompt.question}").input_ids
        logits = model(input_ids=torch.tensor([ids], device=device), logits_to_keep=1).logits[0, -1]
        results.append(float(logits[columns].float().softmax(0)[0]))
    return np.array(results)


def compare(served: Float64, reference: Float64, positive: Any, tolerance: float) -> dict[str, Any]:
    """AUC of both with bootstrap intervals, and how far they agree.

    Raises:
        SystemExit: A score is off by more than the tolerance, or reviews score so alike that it would not show.
    """
    difference = np.abs(served - reference)
    control = float(np.abs(served - np.roll(reference, 1)).max())
    results = {
        "auc": asdict(agreement.auc_interval(served, positive)),
        "auc_transformers": asdict(agreement.auc_interval(reference, positive)),
        "auc_gain": asdict(agreement.auc_gain_interval(served, reference, positive)),
        "largest_difference": float(difference.max()),
        "mean_difference": float(difference.mean()),
        "control": control,
        "tolerance": tolerance,
        "spearman": agreement.spearman(served, reference),
        "same_best_of_ten": agreement.same_best(served, reference, GROUP),
    }
    if control < 4 * tolerance:
        raise SystemExit(f"reviews differ by {control:.2g} only: the comparison could not see a mistake")
    if not difference.max() <= tolerance:
        raise SystemExit(
            f"a score through the server is off by {difference.max():.2g}, allowed {tolerance:g}: {results}"
        )
    return results


def main() -> int:
    """Serve, score and compare; writes quality_served.json."""
    options = parse()
    device, _ = choose_device("auto")
    checkpoint = options.checkpoint or resolve()
    prompt, texts = PROMPTS[CHOSEN], reviews.read(options.reviews).measured[: options.limit]
    options.out.mkdir(parents=True, exist_ok=True)
    settings = server_settings(model=str(checkpoint), models="tokenizer,scorer,score", device=device)
    gpu = GpuSampler()
    with Server(settings, options.out / "server-quality.log") as server:
        triton = triton_version(server.http_url)
        begin = time.perf_counter()
        served, tokens, cached = by_server(server.grpc_url, texts, prompt)
        seconds = time.perf_counter() - begin
    print(f"{len(texts)} reviews through the server in {seconds:.1f} s", flush=True)
    reference = by_transformers(checkpoint, device, texts, prompt)
    positive = np.array([review.positive for review in texts])
    results = {
        "machine": machine_facts(
            options.commit, gpu.device if device == "cuda" else None, gpu.driver, triton
        ),
        "reviews": len(texts),
        "dtype": "bfloat16" if device == "cuda" else "float32",
        "reference_dtype": "float32",
        "prompt_tokens": tokens,
        "cached_tokens": cached,
        "seconds": seconds,
        **compare(served, reference, positive, TOLERANCES[device]),
    }
    write_json(options.out / "quality_served.json", results)
    print({name: value for name, value in results.items() if name != "machine"})
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "quality_served.json")
    parser.add_argument("--reviews", type=Path, required=True, metavar="FILE.json")
    parser.add_argument("--checkpoint", type=Path, help="a local directory (default: the demo's)")
    parser.add_argument(
        "--limit", type=int, default=reviews.MEASURED, help="reviews measured (default: %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
