"""The report's sections on quality: by precision, by text through the server, by selection in decoding."""

from collections.abc import Mapping, Sequence
from statistics import mean
from typing import Any

from perf.report.parts import Raw, Section, Table, interval, share


def quality(raw: Raw) -> Section | None:
    """AUC on labelled reviews by precision, from quality.json."""
    found = raw.results.get("quality.json")
    if found is None:
        return None
    rows = [
        (
            row["dtype"], interval(row["auc"], "value"), interval(row["auc_gain"], "value"),
            f"{row['largest_difference']:.2g}", f"{row['spearman']:.4f}", f"{row['between_batches']:.2g}",
        )
        for row in found["rows"]
    ]  # fmt: skip
    head = (
        "precision", "AUC [95%]", "gain over the first [95%]", "largest difference", "Spearman",
        "alone against batched",
    )  # fmt: skip
    said = [f"{found['reviews']} labelled film reviews, ten to a call, prompt “{found['prompt']}”."]
    return Section("Quality", said, [Table(head, rows)])


def served(raw: Raw) -> Section | None:
    """Scores by text through the server against transformers, from quality_served.json."""
    found = raw.results.get("quality_served.json")
    if found is None:
        return None
    rows = [
        ("AUC by text through the server [95%]", interval(found["auc"], "value")),
        ("AUC by transformers [95%]", interval(found["auc_transformers"], "value")),
        ("gain of the first over the second [95%]", interval(found["auc_gain"], "value")),
        ("largest difference of a score", f"{found['largest_difference']:.2g}"),
        ("mean difference of a score", f"{found['mean_difference']:.2g}"),
        ("control: largest difference from another review's score", f"{found['control']:.2g}"),
        ("Spearman", f"{found['spearman']:.4f}"),
        ("the same best of ten", share(found["same_best_of_ten"])),
        ("prompt tokens served from the cache", f"{found['cached_tokens']:,} of {found['prompt_tokens']:,}"),
    ]
    said = [
        f"{found['reviews']} labelled film reviews, ten to a call, as text to `score` ({found['dtype']}); the "
        f"same texts, each a prompt of its own, by transformers ({found['reference_dtype']}).",
    ]
    return Section("Quality by text, through the server", said, [Table(("", ""), rows)])


def selection(raw: Raw) -> Section | None:
    """What selection costs in decoding, from decode_quality.json."""
    found = raw.results.get("decode_quality.json")
    if found is None:
        return None
    variants = found["variants"]
    texts = [task["task"] for task in _tasks(variants[0], "texts")]
    rows = [
        (
            variant["name"],
            *(f"{task['perplexity']:.3f}" for task in _tasks(variant, "texts")),
            f"{mean(task['agreement'] for task in _tasks(variant, 'texts')):.3f}",
            f"{mean(task['divergence'] for task in _tasks(variant, 'texts')):.4f}",
            _of(_tasks(variant, "pass keys")),
            share(variant["groups"]["texts"]["hit_rate"]),
        )
        for variant in variants
    ]
    said = [
        f"{found['model']}: perplexity of what decode steps predict after {found['prompt']:,} tokens of real "
        "texts, agreement of the most probable token with dense, divergence from dense in nats, and pass keys "
        f"found in texts of {', '.join(f'{length:,}' for length in found['lengths'])} tokens. A budget is what a "
        "step attends to, in tokens. Prefill is dense with every selector. Compare each line with the first."
    ]
    head = ("selector and budget", *texts, "agreement", "divergence", "keys found", "hits")
    return Section("Quality of selection in decoding", said, [Table(head, rows)])


def _tasks(variant: Mapping[str, Any], group: str) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = variant["groups"][group]["tasks"]
    return found


def _of(keys: Sequence[Mapping[str, Any]]) -> str:
    return f"{sum(task['answer_right'] for task in keys)} of {len(keys)}"
