"""The work of a batcher, as counters that only rise; metrics read them."""

from collections import Counter
from dataclasses import dataclass, field

from hiscore.histogram import Histogram


@dataclass
class Totals:
    """The work of a batcher since its start.

    Attributes:
        queue_wait: Seconds that requests waited until their first part was launched.
        call: Seconds from a request's arrival to its answer, errors left out.
        launch_seconds: Seconds in `BatchedModel.launch`.
        device_seconds: Seconds of waiting for launched batches.
        rejects: Rejected requests, by reason: full, late, cancelled.
    """

    queue_wait: Histogram = field(default_factory=Histogram)
    call: Histogram = field(default_factory=Histogram)
    launch_seconds: float = 0.0
    device_seconds: float = 0.0
    answer_seconds: float = 0.0
    rejects: Counter[str] = field(default_factory=Counter)

    @property
    def queue_seconds(self) -> float:
        return self.queue_wait.sum
