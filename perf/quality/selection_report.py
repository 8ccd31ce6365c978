"""The results of perf.quality.selection as a page in Markdown."""

import math
from collections.abc import Sequence
from statistics import mean
from typing import Any

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
