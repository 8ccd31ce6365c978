"""Counters of our own beside Triton's, updated once per batch.

Every update is a round trip to the server's process, so they stay out of loops over requests or items.
"""

from typing import Any

import triton_python_backend_utils as pb_utils


class Counters:
    """A few Prometheus counters of one model instance, made from ``{name: help}``."""

    def __init__(self, descriptions: dict[str, str], labels: dict[str, str]) -> None:
        self._counters: dict[str, Any] = {}
        self._families = []
        for name, description in descriptions.items():
            family = pb_utils.MetricFamily(
                name=name, description=description, kind=pb_utils.MetricFamily.COUNTER
            )
            self._families.append(family)
            self._counters[name] = family.Metric(labels=labels)

    def add(self, **amounts: int) -> None:
        """Raise counters by name; zeros cost nothing."""
        for name, amount in amounts.items():
            if amount:
                self._counters[name].increment(amount)
