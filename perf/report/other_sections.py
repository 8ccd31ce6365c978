"""The report's other sections: peers, the machine's ceilings, costs on the host, sources of the numbers."""

from perf.report import charts
from perf.report.charts import Bar, Placed, Roof
from perf.report.parts import Raw, Section, Table, failures, interval, not_run, number, share


def peers(raw: Raw) -> Section | None:
    """Other programs with the same scores, from peers.json."""
    results = raw.results.get("peers.json")
    if results is None:
        return None
    rows, shown = [], []
    for load, compared in results["groups"].items():
        for name, arm in compared["arms"].items():
            base = name == next(iter(compared["arms"]))
            value, ratio = arm["value"], arm["ratio"]
            rows.append(
                (load, name, number(value["median"]), interval(ratio), f"{arm['largest_difference']:.1g}")
            )
            shown.append(Bar(f"{load}: {name}", ratio["median"], ratio["low"], ratio["high"], base))
    said = [results["what"], *not_run(results["skipped"]), *failures(results.get("failures", []))]
    head = ("load", "by", "ms a call", "ratio", "largest difference of a score")
    figure = charts.bars(shown, "time per call, to ours")
    return Section("Peers", said, [Table(head, rows)], {"peers": figure})


def roofline(raw: Raw) -> Section | None:
    """Ceilings and the forwards below them, from roofline.json."""
    results = raw.results.get("roofline.json")
    if results is None:
        return None
    best = max(results["matmul"], key=lambda row: row["flops"])
    copy = max(results["copy"], key=lambda row: row["bytes_per_s"])
    roof = Roof(f"{results['dtype']}: measured ceilings", best["flops"], copy["bytes_per_s"])
    points = [
        Placed(p["name"], p["flop"] / p["weight_bytes"], p["flop"] / p["seconds"])
        for p in results["forwards"]
    ]
    rows = [
        (
            p["name"],
            number(1e3 * p["seconds"]),
            number(p["flop"] / 1e12),
            share(p["flop"] / p["seconds"] / best["flops"]),
        )
        for p in results["forwards"]
    ]
    ceilings = [
        *((f"product {row['shape']}", f"{number(row['flops'] / 1e12)} TFLOP/s") for row in results["matmul"]),
        *(
            (f"{row['what']}, {row['mib']} MiB", f"{number(row['bytes_per_s'] / 1e9)} GB/s")
            for row in results["copy"]
        ),
    ]
    said = [
        "The ceilings were measured in the same run; they are not the maker's. A forward's FLOP are those of its "
        "products with weights and of attention; its bytes are the weights, read once, so its place on the "
        "horizontal axis is an upper bound."
    ]
    tables = [
        Table(("forward", "ms", "TFLOP", "of the ceiling"), rows),
        Table(("ceiling", "best"), ceilings),
    ]
    return Section("Roofline", said, tables, {"roofline": charts.roofline([roof], points)})


def cpu_cost(raw: Raw) -> Section | None:
    """Costs on the host, from cpu_cost.json, and of the tokenizer on all cores, from text_cost.json."""
    results, text = raw.results.get("cpu_cost.json"), raw.results.get("text_cost.json")
    rows = []
    if text:
        cost, cores = text["tokenizer"], text["machine"]["cores"]
        for size in (1, 8):
            rate = 1e3 * cost["tokens"] / cost[f"wall_ms_in_batches_of_{size}"]
            rows.append((f"tokenizer on {cores} cores, {size} calls a batch", f"{number(rate)} tokens/s"))
            rate = 1e3 * cost["tokens"] / cost[f"cpu_ms_in_batches_of_{size}"]
            rows.append(("the same for each second of CPU time", f"{number(rate)} tokens/s"))
    figures = {}
    if results:
        rows += [(row["what"], f"{number(row['value'])} {row['unit']}") for row in results["rows"]]
        memory = results["memory"]
        calls = [sample["calls"] for sample in memory]
        figures["memory"] = charts.curves(
            {
                "resident, all processes": (calls, [sample["rss_mib"] for sample in memory]),
                "/dev/shm": (calls, [sample["shm_mib"] for sample in memory]),
            },
            "calls answered",
            "MiB",
            log=False,
        )
    if not rows:
        return None
    return Section(
        "What the host pays", results["said"] if results else (), [Table(("what", ""), rows)], figures
    )


def provenance(raw: Raw) -> Section:
    """Where, when and by which command each file was measured."""
    rows = []
    for name, results in raw.results.items():
        facts = results.get("machine", {})
        versions = ", ".join(f"{key} {value}" for key, value in facts.get("packages", {}).items() if value)
        device = facts.get("gpu") or results.get("device") or facts.get("cpu", "")
        rows.append(
            (
                name, str(facts.get("time", "")), str(device), str(facts.get("cores", "")),
                str(facts.get("commit") or ""), str(facts.get("command", "")), versions,
            )
        )  # fmt: skip
    bench = raw.results.get("bench.json", {})
    steps = bench.get("steps", [])
    lost = (f"{step['name']} ({step['command']}), exit code {step['code']}" for step in steps if step["code"])
    said = [*failures(lost), *not_run(bench.get("not_run", []))]
    head = ("file", "time", "device", "cores", "commit", "command", "versions")
    return Section("Where the numbers come from", said, [Table(head, rows)])
