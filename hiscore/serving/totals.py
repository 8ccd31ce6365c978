"""What a batcher has done, as counters that only rise; metrics read them."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Totals:
    """What a batcher has done since its start.

    Attributes:
        queue_seconds: Waits of requests until their first part was launched.
        launch_seconds: Spent in `BatchedModel.launch`.
        device_seconds: Spent waiting for launched batches.
        answer_seconds: Spent sending answers.
        rejects: Rejected requests, by reason: full, late, cancelled.
    """

    queue_seconds: float = 0.0
    launch_seconds: float = 0.0
    device_seconds: float = 0.0
    answer_seconds: float = 0.0
    rejects: Counter[str] = field(default_factory=Counter)
