"""Rows that are sampled alone after all of them together have failed."""

import pytest

from hiscore.decoding.worker.token_sampler import launch_for

LOST = RuntimeError("Triton Error [CUDA]: an illegal memory access was encountered")


def failing_with(error: Exception, tried: list[list[int]]):
    def launch(rows: list[int]) -> None:
        tried.append(rows)
        if 1 in rows:
            raise error

    return launch


def test_on_a_lost_device_no_row_is_tried_alone() -> None:
    """What its frames hold must not be freed."""
    tried: list[list[int]] = []
    with pytest.raises(RuntimeError, match="illegal memory access") as raised:
        launch_for(range(3), failing_with(LOST, tried), {})
    assert tried == [[0, 1, 2]]
    assert raised.value.__traceback__ is not None
