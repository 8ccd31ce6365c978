"""Waiting until the models have exported what they have counted, which they do once a second."""

import re
import time
import urllib.request

EXPORTS = re.compile(r"^hiscore_exports_total\{([^}]*)\} (\S+)$", re.MULTILINE)
TIMEOUT_S = 300.0


def wait_for_exports(metrics_url: str) -> None:
    """Return once every instance has exported all that it had counted when this was called.

    Raises:
        TimeoutError: One does not export any more.
    """
    # One export may have been going on; the next one began later.
    wanted = {instance: count + 2 for instance, count in _exports(metrics_url).items()}
    end = time.monotonic() + TIMEOUT_S
    while any(count < wanted.get(instance, 0) for instance, count in _exports(metrics_url).items()):
        if time.monotonic() > end:
            raise TimeoutError(f"metrics were not exported within {TIMEOUT_S:.0f} s")
        time.sleep(0.02)


def _exports(metrics_url: str) -> dict[str, float]:
    return {labels: float(count) for labels, count in EXPORTS.findall(page(metrics_url))}


def page(metrics_url: str) -> str:
    """A server's metrics, as Prometheus gets them."""
    with urllib.request.urlopen(metrics_url) as response:
        text: str = response.read().decode()
    return text
