"""The report's sections on the scorer's speed."""

from collections.abc import Mapping

from perf.report import charts, request_stages
from perf.report.charts import Bar
from perf.report.parts import Raw, Section, Table, failures, interval, number, shape, share

SUSTAINED = 0.97
"""Of the offered load: with less, the server does not keep up."""


def latency(raw: Raw) -> Section | None:
    """Latency against load, from serving.json."""
    serving = raw.results.get("serving.json")
    if serving is None:
        return None
    points = serving["points"]
    # The curve is that of our own generator; perf_analyzer's windows have its name in theirs.
    opened = [p for p in points if p["group"] == "open" and "perf_analyzer" not in p["name"]]
    closed = [p for p in points if p["group"] == "closed"]
    figures = {}
    sustained = [p for p in opened if p["rate"] >= SUSTAINED * p["offered"]]
    if sustained:
        rates = [p["offered"] for p in sustained]
        figures["open-loop"] = charts.curves(
            {name: (rates, [p[name] for p in sustained]) for name in ("p50", "p90", "p99")},
            "calls a second, Poisson arrivals",
            "ms from the intended send time",
        )
    if closed:
        rates = [p["items_per_s"] for p in closed]
        figures["closed-loop"] = charts.curves(
            {name: (rates, [p[name] for p in closed]) for name in ("p50", "p99")},
            f"items a second ({', '.join(p['name'].split()[0] for p in closed)} calls in flight)",
            "ms",
        )
    head = ("load", "calls", "failed", "calls/s", "items/s", "avg ms", "p50", "p90", "p99", "in 50 ms", "GPU")
    rows = [
        (
            p["name"], str(p["calls"]), str(p["failed"]), number(p["rate"]), number(p["items_per_s"]),
            *(number(p[name]) for name in ("avg", "p50", "p90", "p99")), share(p["within_50_ms"]),
            share(p["gpu_busy"]),
        )
        for p in points
    ]  # fmt: skip
    beyond = [p["name"] for p in opened if p not in sustained]
    best = serving["saturation"]
    said = [
        f"A call is {shape(serving['plan']['request'])} tokens (query + items x item), every id fresh. "
        "In open loop latencies count from the intended send time; failed calls count as misses of a bound."
    ]
    if beyond:
        said.append(
            f"Not drawn: {', '.join(beyond)}. The server did not keep up, so the latency is that of a queue that "
            "grows as long as the window lasts."
        )
    if best:
        said.append(
            f"Most items a second with a p99 under 500 ms: {number(best['items_per_s'])}, {best['window']}."
        )
    check = serving["check"]
    if check:
        said.append(
            f"Checked before: {check['scores']} scores of items in their calls and alone differ by "
            f"at most {check['difference']:.1g} (allowed {check['tolerance']:g}; "
            f"from another item's by {check['control']:.2g})."
        )
    said += failures(serving["failures"])
    return Section("Latency against load", said, [Table(head, rows)], figures)


def time_of_a_call(raw: Raw) -> Section | None:
    """Stages of a call alone, from trace.json where it is, else from perf_analyzer's log and forward.json."""
    forward = raw.results.get("forward.json", {})
    traced = raw.results.get("trace.json")
    rows: Mapping[str, Mapping[str, float]]
    rows = traced["stages"] if traced else request_stages.read(raw.analyzer_log, forward)
    if not rows:
        return None
    names = list(dict.fromkeys(name for parts in rows.values() for name in parts))
    table = Table(
        ("ms", *rows),
        [(name, *(number(parts.get(name)) for parts in rows.values())) for name in names]
        + [("all", *(number(sum(parts.values())) for parts in rows.values()))],
    )
    source = (
        "Means over calls sent one at a time, from Triton's trace of each request; the stages inside the scorer "
        "are those of the same calls in a process without a server."
        if traced
        else "Averages over calls sent one at a time by perf_analyzer, from the server's own statistics; the "
        "forward is one of the same shape, measured in a process of its own."
    )
    return Section(
        "Where the time of a call goes", [source], [table], {"time-of-a-call": charts.stacked(rows, "ms")}
    )


def ablations(raw: Raw) -> Section | None:
    """Ratios with their intervals, from ablations.json and other comparisons of arms in turns."""
    files = {
        name: found
        for name, found in raw.results.items()
        if name in ("ablations.json", "text_cost.json", "two_gpus.json")
    }
    rows, lines = [], []
    figures = {}
    for name, found in files.items():
        shown = []
        for group, compared in found["groups"].items():
            first, *others = compared["arms"].items()
            base = f"{first[0]}, {number(first[1]['value']['median'])} {compared['unit']}"
            for arm, measured in others:
                ratio = measured["ratio"]
                lines.append((group, base, arm, interval(ratio)))
                shown.append(Bar(f"{group}: {arm}", ratio["median"], ratio["low"], ratio["high"]))
        if name == "ablations.json":
            rows = shown
    if rows:
        figures["ablations"] = charts.bars(rows, "time per call, to the first arm of the group")
    if not lines:
        return None
    said = [
        "Arms take turns within one run and ratios are taken within a round; given are the median and its 95% "
        "interval. All arms of a group gave the same scores before the clock ran. A ratio of times above 1 is "
        "what is lost without the first arm's optimisation."
    ]
    return Section(
        "What each choice is worth", said, [Table(("group", "first arm", "against", "ratio"), lines)], figures
    )


def forwards(raw: Raw) -> Section | None:
    """One forward on the GPU, from forward*.json."""
    files = raw.named("forward")
    if not files:
        return None
    rows = [
        (found["dtype"], batch, *(number(measured[name]) for name in ("gpu_ms", "launch_ms", "total_ms")))
        for found in files.values()
        for batch, measured in found.items()
        if isinstance(measured, dict) and "gpu_ms" in measured
    ]
    head = ("precision", "batch", "GPU ms", "launch ms", "alone ms")
    return Section("One forward", (), [Table(head, rows)])
