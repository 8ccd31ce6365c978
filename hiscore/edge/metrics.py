"""Our metrics, exported alongside Triton's; each update is a round trip, for which no call may wait."""

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils

from hiscore.errors import REASONS

REJECTS = {"hiscore_rejects_total": f"Calls rejected, by reason: {', '.join(REASONS)}"}


class _Metrics:
    """Prometheus metrics of one model instance, from ``{name: help}``."""

    def __init__(self, descriptions: Mapping[str, str], labels: dict[str, str], kind: Any) -> None:
        self._families = [
            pb_utils.MetricFamily(name=name, description=description, kind=kind)
            for name, description in descriptions.items()
        ]
        self._metrics = {
            name: family.Metric(labels=labels)
            for name, family in zip(descriptions, self._families, strict=True)
        }


class Counters(_Metrics):
    """Metrics that only increase."""

    def __init__(self, descriptions: Mapping[str, str], labels: dict[str, str]) -> None:
        super().__init__(descriptions, labels, pb_utils.MetricFamily.COUNTER)

    def add(self, **amounts: float) -> None:
        """Increase counters by name; zeros cost nothing."""
        for name, amount in amounts.items():
            if amount:
                self._metrics[name].increment(amount)


class Gauges(_Metrics):
    """Metrics of the current state."""

    def __init__(self, descriptions: Mapping[str, str], labels: dict[str, str]) -> None:
        super().__init__(descriptions, labels, pb_utils.MetricFamily.GAUGE)
        self._values = dict.fromkeys(descriptions, 0.0)

    def set(self, **values: float) -> None:
        """Set gauges by name; an unchanged value costs nothing."""
        for name, value in values.items():
            if value != self._values[name]:
                self._metrics[name].set(value)
                self._values[name] = value


class Rejects:
    """Counters of rejected requests, by reason."""

    def __init__(self, labels: dict[str, str]) -> None:
        self._counters = {reason: Counters(REJECTS, labels | {"reason": reason}) for reason in REASONS}

    def add(self, reason: str, calls: float) -> None:
        """Increase the counter of a reason; zero costs nothing."""
        self._counters[reason].add(hiscore_rejects_total=calls)
