"""Work on a stream beside the current one."""

import weakref
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from hiscore.decoding.sparse.triton_cache_ops import SideStream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

# Work held up by some milliseconds: what does not wait for it has long passed, unless the host is late itself.
CYCLES = 10_000_000
LONGER = (1, 10, 100)


def overtaking(waits: bool, cycles: int) -> Tensor:
    """Read what slow work writes, before and after waiting for it, or without waiting: float32 [2]."""
    side, slow, fast = (
        SideStream(torch.device("cuda")),
        torch.zeros((), device="cuda"),
        torch.ones((), device="cuda"),
    )

    def work() -> None:
        torch.cuda._sleep(cycles)
        slow.copy_(fast)

    wait = side.launch(work)
    before = slow.clone()
    if waits:
        wait()
    after = slow.clone()
    if not waits:
        wait()
    return torch.stack((before, after))


def captured(waits: bool, cycles: int) -> Tensor:
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        found = overtaking(waits, cycles)
    graph.replay()
    return found


@pytest.mark.parametrize("read", [overtaking, captured])
def test_only_what_waits_sees_the_work(read: Callable[[bool, int], Tensor]) -> None:
    for waits, expected in ((True, [0.0, 1.0]), (False, [0.0, 0.0])):
        found: list[float] = []
        for longer in LONGER:
            torch.cuda.synchronize()
            found = read(waits, longer * CYCLES).tolist()
            if found == expected:
                break
        assert found == expected


def test_what_the_work_reads_is_kept_until_somebody_waits_for_it() -> None:
    """Its memory would be given to others on the current stream, while the work reads it on its own."""
    source, target = torch.ones(4, device="cuda"), torch.zeros(4, device="cuda")
    kept = weakref.ref(source)
    wait = SideStream(torch.device("cuda")).launch(partial(target.copy_, source))
    del source
    assert kept() is not None
    wait()
    assert kept() is None
    assert target.tolist() == [1.0] * 4
