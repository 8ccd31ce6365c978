"""Which devices an instance's ranks have."""

import pytest
import torch

from hiscore.parallel.start import devices_of


def test_every_gpu_is_in_one_instance_alone() -> None:
    dealt = [devices_of(torch.device("cuda", first), 2, visible=6) for first in (0, 2, 4)]
    assert [device.index for devices in dealt for device in devices] == list(range(6))
    assert devices_of(torch.device("cuda", 3), 1, visible=4) == [torch.device("cuda", 3)]
    assert devices_of(torch.device("cpu"), 3, visible=0) == [torch.device("cpu")] * 3


@pytest.mark.parametrize(("first", "ranks", "visible"), [(1, 2, 4), (2, 4, 8), (4, 4, 6), (0, 2, 1)])
def test_gpus_that_another_instance_has_or_that_are_not_there_are_refused(
    first: int, ranks: int, visible: int
) -> None:
    with pytest.raises(
        ValueError, match=f"TENSOR_PARALLEL is {ranks}: an instance cannot begin at cuda:{first}"
    ):
        devices_of(torch.device("cuda", first), ranks, visible)
