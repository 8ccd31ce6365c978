"""The report's section on published numbers next to ours; changes can be compared, times cannot."""

from collections.abc import Iterator, Mapping
from typing import Any

from perf.report.parts import Raw, Section, Table, number
from perf.report.published_numbers import BACKUP, DELIMITERS, OVERLAP, REMOVE_DECODE, Change

HEAD = ("", "published: before", "after", "change", "ours: without", "with", "change", "ours, of what")
FAIR = (
    "The published numbers are from other machines, models and loads, named with each; ours are from the machine "
    "named below. Times of theirs and ours therefore say nothing about either program. Only what a change was "
    "worth can be compared, and that depends on the cost of the rest of the program as well. Programs on one "
    "machine in one run are compared under Peers."
)
# Our numbers by row, without and with the change; one of them may be missing.
Ours = Mapping[str, tuple[float | None, float | None, str]]


def published(raw: Raw) -> Section:
    """A table for each published change."""
    # Each change with our numbers for its rows and the names of our ablations of it.
    compared: tuple[tuple[Change, Ours, tuple[str, ...]], ...] = (
        (REMOVE_DECODE, dict(_scoring(raw)), ("decode step",)),
        (DELIMITERS, {}, ("delimiters",)),
        (BACKUP, dict(_backup(raw)), ()),
        (OVERLAP, {}, ("overlap",)),
    )
    tables = [
        Table((change.title, *HEAD[1:]), [*_rows(change, ours), *_ratios(raw, groups)])
        for change, ours, groups in compared
    ]
    said = [FAIR, *(f"{change.title}: {change.where}." for change, *_ in compared)]
    devices = sorted(
        {str(f["machine"]["gpu"]) for f in raw.results.values() if f.get("machine", {}).get("gpu")}
    )
    said.append(
        f"Ours: {', '.join(devices)}, Qwen3-0.6B's geometry with random weights, bfloat16, gRPC."
        if devices
        else "Ours: no GPU, a rehearsal with a tiny model and small calls, whose times mean nothing beside theirs."
    )
    return Section("Beside published numbers", said, tables)


def _rows(change: Change, ours: Ours) -> Iterator[tuple[str, ...]]:
    for row in change.rows:
        before, after, what = ours.get(row.what, (None, None, ""))
        published_ = (number(row.before), number(row.after), _change(row.before, row.after))
        yield row.what, *published_, number(before), number(after), _change(before, after), what


def _ratios(raw: Raw, groups: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """Our own ablations of the change, in the unit they were measured in."""
    found = raw.results.get("ablations.json", {}).get("groups", {})
    for name, compared in found.items():
        if name.startswith(groups):
            (first, base), *others = compared["arms"].items()
            after = base["value"]["median"]
            for arm, measured in others:
                before = measured["ratio"]["median"] * after
                yield (
                    f"{name}, ms a call", "", "", "",
                    number(before), number(after), _change(before, after), f"“{first}” against “{arm}”",
                )  # fmt: skip


def _change(before: float | None, after: float | None) -> str:
    return f"{after / before - 1:+.1%}" if before and after else ""


def _scoring(raw: Raw) -> Iterator[tuple[str, tuple[None, float, str]]]:
    load = raw.results.get("score_load.json", {}).get("points", [])
    serving = raw.results.get("serving.json", {}).get("points", [])
    point = next(
        (p for p in (*load, *serving) if p["group"] == "open" and p["offered"] == 70 and not p["failed"]),
        None,
    )
    if point:
        for name, title in (("avg", "average"), ("p50", "p50"), ("p90", "p90"), ("p99", "p99")):
            yield f"call, {title} ms", (None, point[name], f"{point['name']}, {point['calls']} calls")
    alone = next((p for p in serving if p["group"] == "alone" and p["shape"] == "300 + 1 x 0"), None)
    if alone:
        yield "one prompt of 300 tokens alone, ms", (None, alone["avg"], f"{alone['name']}, average")


def _backup(raw: Raw) -> Iterator[tuple[str, tuple[float, float, str]]]:
    """Through the server where that was measured, else in one process."""
    served = {w["group"]: w for w in raw.results.get("decode_serving.json", {}).get("windows", [])}
    before, after = served.get("benchmark, blocking"), served.get("benchmark, ring")
    if before and after:
        what = f"{after['name'].removesuffix(', ring')}, blocking against ring"
        for name, of in SERVED.items():
            yield name, (of(before), of(after), what)
        return
    for found in raw.named("decode-").values():
        arms = found["groups"].get("backup", {})
        if {"ring", "blocking"} <= arms.keys():
            load = found["load"]
            lengths = f"{load['streams']} streams, {load['prompt']} + {load['tokens']}"
            what = f"{found['geometry']}, {lengths}, in process"
            keys = {
                "per token after the first, mean ms": "tpot_ms",
                "between responses, p99 ms": "itl_p99_ms",
            }
            for row, key in keys.items():
                yield row, (arms["blocking"][key], arms["ring"][key], what)
            return


SERVED: Mapping[str, Any] = {
    "per token after the first, mean ms": lambda w: w["tpot"]["mean"],
    "per token after the first, median ms": lambda w: w["tpot"]["p50"],
    "per token after the first, p99 ms": lambda w: w["tpot"]["p99"],
    "between responses, median ms": lambda w: w["itl"]["p50"],
    "between responses, p95 ms": lambda w: w["itl"]["p95"],
    "between responses, p99 ms": lambda w: w["itl"]["p99"],
    "first token, median ms": lambda w: w["ttft"]["p50"],
    "end to end, mean ms": lambda w: w["end_to_end"]["mean"],
    "output tokens/s": lambda w: w["output_tokens_per_s"],
    "all tokens/s": lambda w: w["input_tokens_per_s"] + w["output_tokens_per_s"],
}
