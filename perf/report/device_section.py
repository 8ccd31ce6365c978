"""The report's section on the device: how much of the time it is idle, and how full it is."""

from collections.abc import Iterator

from perf.report.parts import Raw, Section, Table, number, share


def device(raw: Raw) -> Section | None:
    """Idle shares from ablations.json and from windows of served loads; memory where it was sampled."""
    idle = [
        (f"{group}: {arm}", f"{found['idle']['any_gap']:.1%}", f"{found['idle']['long_gaps']:.2%}")
        for group, compared in raw.results.get("ablations.json", {}).get("groups", {}).items()
        for arm, found in compared["arms"].items()
        if "idle" in found
    ]
    served = list(_windows(raw))
    tables = []
    if idle:
        tables.append(Table(("in one process", "idle", "in gaps that the host left"), idle))
    if served:
        tables.append(
            Table(("through the server", "idle, at least", "device memory in use, most, GiB"), served)
        )
    if not tables:
        return None
    said = [
        "In one process: from the profiler's record of every kernel and copy; gaps of more than 10 microseconds "
        "are those that the host left. Through the server: the rest of NVML's share of time with a kernel "
        "running. Memory is NVML's as well, of all processes on the device; Decoding shows by tensor what "
        "decoding holds."
    ]
    return Section("The device: idle time and memory", said, tables)


def _windows(raw: Raw) -> Iterator[tuple[str, ...]]:
    return (
        (
            f"{window['name']} ({tool})",
            share(1 - window["gpu_busy"]),
            number(window.get("gpu_memory_gib")),
        )
        for tool in ("serving", "score_load", "decode_serving")
        for found in raw.named(tool).values()
        for window in (*found.get("points", ()), *found.get("windows", ()))
        if window["gpu_busy"] is not None
    )
