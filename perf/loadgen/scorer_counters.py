"""The scorer's counters, as a server reports them."""

import re
from collections import Counter, defaultdict

from hiscore.launcher import Server
from perf.loadgen.exports import page, wait_for_exports

METRIC = re.compile(r'^(\w+)\{([^}]*\bmodel="scorer"[^}]*)\} (\S+)$', re.MULTILINE)
DEVICE = re.compile(r'\bdevice="([^"]*)"')
COUNTERS = {
    "hiscore_forwards_total": "forwards",
    "hiscore_batch_tokens_total": "tokens",
    "hiscore_cached_tokens_total": "cached_tokens",
    "nv_inference_count": "calls",
    "nv_inference_exec_count": "executions",
    "nv_inference_queue_duration_us": "queue_us",
}


def counters(server: Server) -> dict[str, float]:
    """The scorer's `COUNTERS`, summed over its instances, with all that has been computed so far."""
    wait_for_exports(server.metrics_url)
    totals: dict[str, float] = defaultdict(float)
    for name, _, value in METRIC.findall(page(server.metrics_url)):
        if name in COUNTERS:
            totals[COUNTERS[name]] += float(value)
    return dict(totals)


def items_by_device(server: Server) -> dict[str, int]:
    """Items scored so far, by device."""
    wait_for_exports(server.metrics_url)
    totals: Counter[str] = Counter()
    for name, labels, value in METRIC.findall(page(server.metrics_url)):
        if name == "hiscore_items_total" and (device := DEVICE.search(labels)):
            totals[device.group(1)] += int(float(value))
    return dict(totals)
