"""The report's sections on decoding: comparisons, memory, the floor, oversubscription, concurrent scoring."""

from collections.abc import Mapping
from typing import Any

from perf.report import charts
from perf.report.charts import Bar
from perf.report.parts import Raw, Section, Table, failures, interval, number, share

# Smaller shares are invisible next to the rest.
LEAST_SHARE = 0.005


def decode(raw: Raw) -> Section | None:
    """Time per token by arm, from decode-*.json."""
    files = raw.named("decode-")
    rows, shown, said = [], [], []
    held: dict[str, dict[str, float]] = {}
    for found in files.values():
        load = found["load"]
        said.append(
            f"{found['geometry']}: {load['streams']} streams, {load['prompt']} tokens in, {load['tokens']} out."
        )
        for group, arms in found["groups"].items():
            if "error" in arms:
                said += failures([f"{found['geometry']}, {group}: {arms['error']}"])
                continue
            for name, arm in arms.items():
                ratio = arm["ratio"]
                sizes = device_gib(arm["device_bytes"])
                # Arms that only differ in what they copy hold the same.
                if sizes not in held.values():
                    held[f"{found['geometry']}: {name}"] = sizes
                rows.append(
                    (
                        found["geometry"], group, name, number(arm["tpot_ms"]), number(arm["itl_p99_ms"]),
                        number(arm["ttft_ms"]), share(arm["hit_rate"]), interval(ratio),
                    )
                )  # fmt: skip
                base = name == next(iter(arms))
                shown.append(
                    Bar(
                        f"{found['geometry']}, {group}: {name}",
                        ratio["median"],
                        ratio["low"],
                        ratio["high"],
                        base,
                    )
                )
    if not rows:
        return None
    said.append("Arms without backup or without swap-in are floors: their tokens are wrong.")
    head = ("geometry", "group", "arm", "ms a token", "p99 between tokens", "first token ms", "hits", "ratio")
    figures = {"decode": charts.bars(shown, "time per token, to the first arm of the group")}
    if held:
        figures["decode-memory"] = charts.stacked(held, "GiB on the device, beside the weights")
    return Section("Decoding", said, [Table(head, rows)], figures)


def device_gib(sizes: Mapping[str, int]) -> dict[str, float]:
    """GiB by tensor; those too small to be seen are added up."""
    total = sum(sizes.values()) or 1
    seen = {name: size / 2**30 for name, size in sizes.items() if size >= LEAST_SHARE * total}
    return seen | {"the rest": total / 2**30 - sum(seen.values())}


def floor(raw: Raw) -> Section | None:
    """A step against its memory floor, from decode_floor.json."""
    found = raw.results.get("decode_floor.json")
    if found is None:
        return None
    rows, parts = [], {}
    for name, case in found.items():
        if isinstance(case, dict) and "floor_ms" in case:
            between = case["engine"]["itl_p50_ms"]
            rows.append(
                (
                    name,
                    number(between),
                    number(case["engine"]["tpot_ms"]),
                    number(case["bare_step_ms"]),
                    number(case["floor_ms"]),
                    f"{case['over_floor']:.2f}",
                )
            )
            parts[name] = {"memory alone": case["floor_ms"], "above it": between - case["floor_ms"]}
    said = [
        "One stream, dense. The floor reads every weight, key and value once, at "
        f"{number(found['bandwidth'] / 1e12)} TB/s. The mean includes the wait of the first step for its prompt's "
        "copy to the host."
    ]
    head = ("case", "ms between tokens, p50", "a token, mean", "bare step", "floor", "times the floor")
    return Section(
        "A token against memory's floor",
        said,
        [Table(head, rows)],
        {"decode-floor": charts.stacked(parts, "ms between tokens")},
    )


def oversubscribed(raw: Raw) -> Section | None:
    """More sequences than fit densely, from decode_oversubscribed.json."""
    found = raw.results.get("decode_oversubscribed.json")
    if found is None:
        return None
    dense = next(iter(found["arms"].values()))

    def rate(arm: Mapping[str, Any], of: str) -> str:
        return f"{number(arm[of])} ({arm[of] / dense[of]:.2f} x)"

    rows = [
        (
            name, rate(arm, "tokens_per_s"), rate(arm, "decode_tokens_per_s"), number(arm["rows_per_step"]),
            number(arm["ttft_ms"] / 1e3), share(arm["hit_rate"]),
        )
        for name, arm in found["arms"].items()
    ]  # fmt: skip
    load = found["load"]
    said = [
        f"{load['streams']} streams of {load['prompt']:,} tokens in and {load['tokens']:,} out at once, with "
        f"{number(found['device_kv_bytes'] / 2**30)} GiB of device memory for all but the weights. Tokens a "
        "second, prefill included and of the steps alone, and how many times dense's they are."
    ]
    head = ("selector", "tokens/s", "in steps alone", "streams a step", "first token s (p50)", "hits")
    return Section("More streams than fit", said, [Table(head, rows)])


def beside(raw: Raw) -> Section | None:
    """Scoring and decoding on one device, from decode_beside.json."""
    found = raw.results.get("decode_beside.json")
    if found is None:
        return None
    scoring = [
        (point["name"], number(point["rate"]), *(number(point[name]) for name in ("avg", "p50", "p99")))
        for point in found["points"]
    ]
    streams = [
        (
            name,
            number(flow["tokens_per_s"]),
            *(number(flow[key]) for key in ("gap_p50", "gap_p99", "gap_worst")),
        )
        for name, flows in found["flows"].items()
        for flow in flows
    ]
    load = found["streams"]
    said = [
        f"{load['count']} streams of {load['prompt']:,} tokens in and {load['tokens']:,} out beside Poisson "
        f"arrivals of {found['points'][0]['offered']:g} scoring calls a second, one server, one device."
    ]
    tables = [
        Table(("scoring", "calls/s", "avg ms", "p50", "p99"), scoring),
        Table(("streams", "tokens/s", "between tokens p50 ms", "p99", "worst"), streams),
    ]
    return Section("Scoring beside decoding", said, tables)
