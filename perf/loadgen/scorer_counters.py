"""The scorer's counters, as a server reports them."""

import re
import urllib.request
from collections import Counter, defaultdict

from hiscore.launcher import Server

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
    """The scorer's `COUNTERS`, summed over its instances."""
    totals: dict[str, float] = defaultdict(float)
    for name, _, value in METRIC.findall(_metrics(server)):
        if name in COUNTERS:
            totals[COUNTERS[name]] += float(value)
    return dict(totals)


def items_by_device(server: Server) -> dict[str, int]:
    """Items scored so far, by device."""
    totals: Counter[str] = Counter()
    for name, labels, value in METRIC.findall(_metrics(server)):
        if name == "hiscore_items_total" and (device := DEVICE.search(labels)):
            totals[device.group(1)] += int(float(value))
    return dict(totals)


def _metrics(server: Server) -> str:
    with urllib.request.urlopen(server.metrics_url) as response:
        text: str = response.read().decode()
    return text
