"""Where prompts are in the staging pool."""

import numpy as np

from hiscore.decoding.models.base import staging_slots


def test_slots_follow_the_pages_in_the_order_of_positions() -> None:
    """Pages of 16."""
    slots = staging_slots(np.array([3, 0], np.int32), 20)
    assert slots.tolist() == [*range(48, 64), 0, 1, 2, 3]
    assert slots.dtype == np.int32
    assert staging_slots(np.array([3, 0], np.int32), 32).tolist() == [*range(48, 64), *range(16)]
    assert staging_slots(np.empty(0, np.int32), 0).tolist() == []
