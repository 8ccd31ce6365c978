"""Measure what selection costs on a real model: perplexity, agreement with dense, pass keys found.

usage: python -m perf.quality.selection --out DIR [--checkpoint DIR] [--reviews FILE] [--prompt 3072]
           [--tokens 128] [--lengths 1024,2048,4096]

Prompts are prefilled once, densely, and put into the cache of each variant; then each is fed the same tokens step
by step. Only what steps predict is judged. Buffers are twice the budget, so that pages come back from the host.
"""

import gc
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor
from transformers import AutoTokenizer

from hiscore.checkpoint import resolve
from hiscore.decoding.memory.sizing import MemoryBudget
from hiscore.decoding.sparse.selectors import SELECTORS
from hiscore.decoding.worker import parts
from hiscore.models.decoder import Decoder
from hiscore.settings import DEFAULT_MODEL
from perf.decoding.arms import PLENTY, Arm, build_worker
from perf.decoding.worker_driver import Driver, Staged
from perf.machine.facts import process_facts
from perf.quality.selection_tasks import Task, continuations, documents, needles
from perf.script import arguments, write_json

HOW = """\
Prompts are prefilled densely with every selector; only what decode steps predict is judged. The budget is
the number of tokens that a step attends to, sink and newest pages included; buffers hold twice as much, and
missing pages come back from the host. `agreement`: share of judged tokens with the same most probable
prediction as dense. `KL`: divergence of the predictions from dense's, in nats. A pass key counts as found if
each of its digits is the most probable one after those before it. Compare each line with the first: what
dense does not find in such a small model says nothing about a selector.""".splitlines()


def markdown(report: dict[str, Any]) -> str:
    """A page with a table of texts and a table of pass keys."""
    variants, machine = report["variants"], report["machine"]
    where = machine["gpu"] or machine["cpu"]
    keys = variants[0]["groups"]["pass keys"]["tasks"]
    lengths = sorted({task["prompt"] for task in keys})
    texts = [task["task"] for task in variants[0]["groups"]["texts"]["tasks"]]
    judged = variants[0]["groups"]["texts"]["tasks"][0]["judged"]
    lines = [
        f"# Quality of selection: {report['model']}",
        "",
        f"On {where}, {report['seconds']:.0f} s, commit {machine['commit']}.",
        "Command: `" + machine["command"] + "`",
        "",
        *HOW,
        "",
        f"An agreement of 0.9 over {len(texts) * judged} judged tokens is known to about ± "
        f"{1.96 * math.sqrt(0.09 / (len(texts) * judged)):.2f}; {len(keys)} keys only show large differences.",
        "",
        f"## Texts: perplexity over {judged} tokens after {report['prompt']}",
        "",
        row(["", *texts, "agreement", "KL", "hit rate"]),
        rule(len(texts) + 4),
    ]
    for variant in variants:
        found = variant["groups"]["texts"]
        tasks = found["tasks"]
        lines.append(
            row(
                [
                    variant["name"],
                    *(f"{task['perplexity']:.3f}" for task in tasks),
                    f"{mean(task['agreement'] for task in tasks):.3f}",
                    f"{mean(task['divergence'] for task in tasks):.4f}",
                    rate(found["hit_rate"]),
                ]
            )
        )
    lines += [
        "",
        "## Pass keys found, by length of the text",
        "",
        row(["", *map(str, lengths), "of all", "perplexity of the digits", "agreement", "hit rate"]),
        rule(len(lengths) + 5),
    ]
    for variant in variants:
        found = variant["groups"]["pass keys"]
        tasks = found["tasks"]
        by_length = [[task for task in tasks if task["prompt"] == length] for length in lengths]
        lines.append(
            row(
                [
                    variant["name"],
                    *(f"{right(of)} of {len(of)}" for of in by_length),
                    f"{right(tasks)} of {len(tasks)}",
                    f"{mean(task['perplexity'] for task in tasks):.2f}",
                    f"{mean(task['agreement'] for task in tasks):.3f}",
                    rate(found["hit_rate"]),
                ]
            )
        )
    return "\n".join([*lines, ""])


def right(tasks: Sequence[dict[str, Any]]) -> int:
    return sum(task["answer_right"] for task in tasks)


def rate(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"


def row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def rule(cells: int) -> str:
    return "|" + "---|" * cells


BUDGETS = (128, 256, 512, 1_024)
DENSE = "dense"


@dataclass(frozen=True)
class Variant:
    """A selector with a budget in tokens; `page` and `dense_layers` are quest's.

    Pages of one token make the oracle `exact`: a page's bound is then the product of query and key.
    """

    selector: str
    budget: int = 0
    page: int = 0
    dense_layers: int = 0

    @property
    def name(self) -> str:
        if self.selector == DENSE:
            return DENSE
        if self.page == 1:
            return f"exact {self.budget}"
        layers = f", page {self.page}, {self.dense_layers} dense layers" if self.page else ""
        return f"{self.selector} {self.budget}{layers}"

    @property
    def arm(self) -> Arm:
        sizes = {"sparse_top_k": self.budget, "device_buffer_size": 2 * self.budget} if self.budget else {}
        if self.page == 1:
            sizes["backup_ring"] = 1  # all tokens of the ring are always selected
        return Arm(self.name, {"selector": self.selector, **sizes}, dense_layers=self.dense_layers)

    def built(self) -> AbstractContextManager[object]:
        """Inside the context, workers are built with the variant's page size."""
        if not self.page:
            return nullcontext()
        quest = replace(SELECTORS["quest"], page_size=self.page)
        return mock.patch.dict(SELECTORS, quest=quest)


@dataclass
class Judged:
    """Predictions of the n judged tokens of a task."""

    nll: list[float]
    """Negative log-likelihood of each."""
    right: list[bool]
    """Tokens that were the most probable, bool."""
    best: list[int]
    """The most probable token instead of each."""
    logits: Tensor
    """float32 [n, vocabulary]"""


def variants() -> list[Variant]:
    """List the variants to compare, the reference first."""
    found = [Variant(DENSE)]
    for budget in BUDGETS:
        found += [Variant("quest", budget, page, 2) for page in (32, 16)] + [Variant("quest", budget, 1)]
    return found + [Variant("quest", budget, 32, layers) for budget in BUDGETS for layers in (0, 1)]


def judge(driver: Driver, tasks: Sequence[Task]) -> tuple[list[Judged], int, int]:
    """Feed tasks side by side, token by token.

    Args:
        driver: Has prefilled the tasks' prompts.

    Returns:
        Predictions by task, and selected pages that were on the device and that were not.
    """
    rests = np.stack([task.rest for task in tasks])
    logits, hits, misses = [], 0, 0
    for at in range(rests.shape[1] - 1):
        logits.append(driver.feed(rests[:, at]).float().cpu())
        hits, misses = hits + driver.result.hits, misses + driver.result.misses
    predicted = torch.stack(logits, dim=1)
    found = []
    for row, task in enumerate(tasks):
        # The prediction after rest[i] is that of rest[i + 1].
        of = predicted[row, -task.judged :]
        truth = torch.from_numpy(task.rest[-task.judged :].astype(np.int64))
        nll = torch.nn.functional.cross_entropy(of, truth, reduction="none")
        best = of.argmax(dim=1)
        found.append(Judged(nll.tolist(), (best == truth).tolist(), best.tolist(), of))
    return found, hits, misses


def divergence(reference: Tensor, other: Tensor) -> float:
    """Mean Kullback-Leibler divergence from the reference in nats; logits are float32 [n, vocabulary]."""
    a, b = reference.log_softmax(dim=1), other.log_softmax(dim=1)
    return float((a.exp() * (a - b)).sum(dim=1).mean())


def rows_of(tasks: Sequence[Task], judged: Sequence[Judged], dense: Sequence[Judged]) -> list[dict[str, Any]]:
    """The numbers of each task, by themselves and against dense."""
    rows = []
    for task, found, base in zip(tasks, judged, dense, strict=True):
        rows.append(
            {
                "task": task.name,
                "prompt": len(task.prompt),
                "judged": task.judged,
                "perplexity": math.exp(sum(found.nll) / len(found.nll)),
                "answer_right": all(found.right),
                "agreement": sum(a == b for a, b in zip(found.best, base.best, strict=True)) / task.judged,
                "divergence": divergence(base.logits, found.logits),
            }
        )
    return rows


def measure(path: Path, groups: dict[str, list[Task]], chosen: Sequence[Variant]) -> Iterator[dict[str, Any]]:
    """Measure all variants on all groups of tasks; the first variant prefills and is the reference."""
    staged: dict[str, list[Staged]] = {}
    dense: dict[str, list[Judged]] = {}
    streams = max(map(len, groups.values()))
    for variant in chosen:
        row: dict[str, Any] = asdict(variant) | {"name": variant.name, "groups": {}}
        started = time.perf_counter()
        with variant.built():
            worker = build_worker(path, variant.arm, MemoryBudget(PLENTY, PLENTY, streams))
        for group, tasks in groups.items():
            prompts = [task.prompt for task in tasks]
            room = len(tasks[0].rest)
            driver = Driver(worker, prompts, room, staged=staged.get(group))
            if group not in staged:
                staged[group] = driver.staged
            judged, hits, misses = judge(driver, tasks)
            driver.release()
            if group not in dense:
                dense[group] = judged
            row["groups"][group] = {
                "tasks": rows_of(tasks, judged, dense[group]),
                "hit_rate": hits / (hits + misses) if misses or hits else None,
            }
        del worker, driver
        gc.collect()
        row["seconds"] = time.perf_counter() - started
        print(f"{variant.name}: {summary(row)} ({row['seconds']:.0f} s)", flush=True)
        yield row


def summary(row: dict[str, Any]) -> str:
    """The numbers of a variant as a line."""
    parts = []
    for group, found in row["groups"].items():
        tasks = found["tasks"]
        if group == "texts":
            parts.append(", ".join(f"{task['perplexity']:.3f}" for task in tasks))
        else:
            parts.append(f"{sum(task['answer_right'] for task in tasks)} of {len(tasks)} keys")
        parts.append(f"agreement {sum(task['agreement'] for task in tasks) / len(tasks):.3f}")
    return "; ".join(parts)


def main() -> int:
    """Measure; writes decode_quality.json and decode_quality.md after every variant."""
    parser = arguments(__doc__, "decode_quality.json and decode_quality.md")
    parser.add_argument("--checkpoint", default=DEFAULT_MODEL, help="directory or name; with a tokenizer")
    parser.add_argument("--reviews", type=Path, help="written by perf.quality.precision --prepare")
    parser.add_argument("--prompt", type=int, default=3_072)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument(
        "--lengths", default="1024,2048,4096", help="lengths of the texts that hide a pass key"
    )
    parser.add_argument("--only", default="", help="dense, and variants with this in their names")
    options = parser.parse_args()
    started = time.perf_counter()
    path = resolve(str(options.checkpoint))
    tokenizer = AutoTokenizer.from_pretrained(path)

    def encode(text: str) -> list[int]:
        ids: list[int] = tokenizer(text, add_special_tokens=False, verbose=False).input_ids
        return ids

    texts = documents(options.reviews)
    lengths = [int(length) for length in options.lengths.split(",")]
    from pydoc_data.topics import topics

    groups = {
        "texts": continuations(texts, encode, options.prompt, options.tokens),
        "pass keys": needles(topics["specialnames"], encode, lengths),
    }
    chosen = [variant for variant in variants() if options.only in variant.name or variant.selector == DENSE]
    report: dict[str, Any] = {
        "machine": process_facts(options.commit),
        "model": path.name,
        "prompt": options.prompt,
        "tokens": options.tokens,
        "lengths": lengths,
        "variants": [],
    }
    options.out.mkdir(parents=True, exist_ok=True)
    with mock.patch.object(parts, "Decoder", cache(Decoder)):
        for row in measure(path, groups, chosen):
            # Written after every variant, so that an interrupted run leaves what it has.
            report["variants"].append(row)
            report["seconds"] = time.perf_counter() - started
            write_json(options.out / "decode_quality.json", report)
            (options.out / "decode_quality.md").write_text(markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
