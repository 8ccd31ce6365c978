"""Our metrics, exported alongside Triton's; each update is a round trip, for which no call may wait."""

from collections.abc import Mapping

import triton_python_backend_utils as pb_utils

from hiscore.errors import REASONS

REJECTS = {"hiscore_rejects_total": f"Calls rejected, by reason: {', '.join(REASONS)}"}


class TritonMetrics:
    """Prometheus metrics of one model instance, from ``{name: help}``: counters, or gauges."""

    def __init__(self, descriptions: Mapping[str, str], labels: dict[str, str], gauges: bool = False) -> None:
        kind = pb_utils.MetricFamily.GAUGE if gauges else pb_utils.MetricFamily.COUNTER
        self._families = [
            pb_utils.MetricFamily(name=name, description=description, kind=kind)
            for name, description in descriptions.items()
        ]
        self._metrics = {
            name: family.Metric(labels=labels)
            for name, family in zip(descriptions, self._families, strict=True)
        }
        self._values = dict.fromkeys(descriptions, 0.0)

    def set(self, **values: float) -> None:
        """Set metrics, by name, counters to what has been counted in all; an unchanged value costs nothing."""
        for name, value in values.items():
            if increase := value - self._values[name]:
                self._metrics[name].increment(increase)
                self._values[name] = value


class Rejects:
    """Counters of rejected requests, by reason."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._counters = {reason: TritonMetrics(REJECTS, labels | {"reason": reason}) for reason in REASONS}

    def raise_to(self, reason: str, calls: float) -> None:
        """Raise the counter of a reason to all of its calls so far."""
        self._counters[reason].set(hiscore_rejects_total=calls)
