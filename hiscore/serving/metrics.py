"""Metrics of our own beside Triton's, updated once per batch, or once a second.

Every update is a round trip to the server's process, so they stay out of loops over requests, items or tokens.
"""

from collections.abc import Mapping
from typing import Any

import triton_python_backend_utils as pb_utils


class _Metrics:
    """A few Prometheus metrics of one model instance, made from ``{name: help}``."""

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
    """Metrics that only rise."""

    def __init__(self, descriptions: Mapping[str, str], labels: dict[str, str]) -> None:
        super().__init__(descriptions, labels, pb_utils.MetricFamily.COUNTER)

    def add(self, **amounts: float) -> None:
        """Raise counters by name; zeros cost nothing."""
        for name, amount in amounts.items():
            if amount:
                self._metrics[name].increment(amount)


class Gauges(_Metrics):
    """Metrics that say how it is now."""

    def __init__(self, descriptions: Mapping[str, str], labels: dict[str, str]) -> None:
        super().__init__(descriptions, labels, pb_utils.MetricFamily.GAUGE)
        self._values = dict.fromkeys(descriptions, 0.0)

    def set(self, **values: float) -> None:
        """Set gauges by name; what stays as it is costs nothing."""
        for name, value in values.items():
            if value != self._values[name]:
                self._metrics[name].set(value)
                self._values[name] = value
