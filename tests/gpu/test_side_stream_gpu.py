"""Work on a stream beside the current one."""

from collections.abc import Callable

import pytest
import torch

from hiscore.decoding.sparse.side_stream import SideStream

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

CYCLES = 10_000_000
"""Some milliseconds: what does not wait for them has long passed."""


def overtaking(waits: bool) -> Callable[[], torch.Tensor]:
    """Work that takes long beside work that does not; what the latter reads of it."""
    side, slow, fast = SideStream(torch.device("cuda")), torch.zeros(4), torch.zeros(4)
    slow, fast = slow.cuda(), fast.cuda()

    def work() -> None:
        torch.cuda._sleep(CYCLES)
        slow.copy_(fast)

    def run() -> torch.Tensor:
        fast.add_(1)
        wait = side.launch(work)
        before = slow.clone()
        if waits:
            wait()
        after = slow.clone()
        if not waits:
            wait()
        return torch.stack((before, after))

    return run


@pytest.mark.parametrize("captured", [False, True])
def test_only_what_waits_sees_the_work(captured: bool) -> None:
    for waits, expected in ((True, [0.0, 1.0]), (False, [0.0, 0.0])):
        run = overtaking(waits)
        if captured:
            stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream):
                found = run()
            graph.replay()
        else:
            found = run()
        torch.cuda.synchronize()
        assert found[:, 0].tolist() == expected
