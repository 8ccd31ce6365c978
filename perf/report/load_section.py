"""The report's sections on loads by perf_analyzer: calls to `score` and `scorer`, requests to `decode`."""

from perf.report import charts
from perf.report.parts import Raw, Section, Table, failures, number, shape, share


def score_load(raw: Raw) -> Section | None:
    """A published load on `scorer` and `score`, from score_load*.json."""
    runs = list(raw.named("score_load").values())
    if not runs:
        return None
    found = runs[0]
    rows = [
        (
            p["name"], str(p["calls"]), str(p["failed"]), number(p["rate"]), number(p["items_per_s"]),
            *(number(p[name]) for name in ("avg", "p50", "p90", "p99")), share(p["within_50_ms"]),
            number(p["late_p99"]), share(p["cached_calls"] / p["calls"]),
        )
        for run in runs
        for p in run["points"]
    ]  # fmt: skip
    head = (
        "load", "calls", "failed", "calls/s", "items/s", "avg ms", "p50", "p90", "p99", "in 50 ms",
        "sent late (p99)", "from the cache",
    )  # fmt: skip
    said = [
        f"By perf_analyzer over gRPC. A call is {shape(found['plan']['request'])} tokens; fresh calls "
        "share nothing, those with “one query for all” differ in their items only. Poisson windows last "
        + ", ".join(f"{number(s)} s ({kind})" for kind, s in found["load"]["seconds"].items())
        + "; their latencies count from the intended send time.",
        *failures(line for run in runs for line in run["failures"]),
    ]
    return Section("A published load, by perf_analyzer", said, [Table(head, rows)])


def decode_serving(raw: Raw) -> Section | None:
    """Decoding through the server, from decode_serving.json."""
    found = raw.results.get("decode_serving.json")
    if found is None:
        return None
    windows = found["windows"]
    rows = [
        (
            w["name"], str(w["streams"]), str(w["failed"]), number(w["output_tokens_per_s"]),
            number(w["ttft"]["p50"]), number(w["ttft"]["p99"]), number(w["tpot"]["mean"]),
            number(w["tpot"]["p99"]), number(w["itl"]["p50"]), number(w["itl"]["p99"]),
            f"{w['tokens_per_response']:.2f}", share(w["gpu_busy"]), share(w["agreement"]),
        )
        for w in windows
    ]  # fmt: skip
    head = (
        "load", "streams", "failed", "tokens/s out", "first token ms p50", "p99", "a token after it ms", "p99",
        "between responses ms p50", "p99", "tokens a response", "GPU", "as alone",
    )  # fmt: skip
    settings = found["settings"]
    said = [
        f"By perf_analyzer, streaming over gRPC. Selector {settings['selector']}, "
        f"top-k {settings['sparse_top_k']}, buffer {settings['device_buffer_size']}. First tokens count from the "
        "intended send time; a response may hold several tokens. “As alone” is the share of a request's "
        "first tokens that its prompt also got alone, up to the first that differs.",
        *failures(found["failures"]),
    ]
    figures = {}
    sweep = [w for w in windows if w["group"] == "sweep"]
    if sweep:
        xs = [w["output_tokens_per_s"] for w in sweep]
        figures["decode-serving"] = charts.curves(
            {
                "first token, p50": (xs, [w["ttft"]["p50"] for w in sweep]),
                "a token after it, mean": (xs, [w["tpot"]["mean"] for w in sweep]),
                "between responses, p99": (xs, [w["itl"]["p99"] for w in sweep]),
            },
            f"tokens a second ({', '.join(w['name'].split(', ')[-1].split()[0] for w in sweep)} streams at once)",
            "ms",
        )
    return Section("Streams, by perf_analyzer", said, [Table(head, rows)], figures)
