"""Which devices an instance has, and on which thread its model is loaded."""

import subprocess
import sys
import threading

import pytest
import torch

from hiscore.parallel import start
from hiscore.parallel.start import devices_of, load_on, use

COUNT_WORKERS = """
import psutil, sys, time, torch
from hiscore.parallel.start import load_on
torch.set_num_threads(3)
def load():
    return torch.ones(2**20).sum()
before, expected, end = psutil.Process().num_threads(), int(sys.argv[2]), time.monotonic() + 60
load_on(torch.device("cpu"), load) if sys.argv[1] == "apart" else load()
# A thread that has been joined ends a moment later, and its workers behind it.
while psutil.Process().num_threads() - before != expected and time.monotonic() < end:
    time.sleep(0.01)
print(psutil.Process().num_threads() - before)
"""


@pytest.mark.parametrize(("how", "left"), [("apart", 0), ("here", 2)])
@pytest.mark.exhaustive
def test_what_loads_on_a_cpu_leaves_no_openmp_workers(how: str, left: int) -> None:
    """The control computes on the thread that stays."""
    command = [sys.executable, "-c", COUNT_WORKERS, how, str(left)]
    done = subprocess.run(command, capture_output=True, check=True, text=True)
    assert int(done.stdout) == left


def raise_no_room() -> None:
    raise ValueError("no room")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_is_loaded_or_raised_comes_back(device: str) -> None:
    """Each thread has a current device of its own: what is for a GPU is loaded by the thread that has set it."""
    here = load_on(torch.device(device), threading.current_thread) is threading.current_thread()
    assert here == (device == "cuda")
    with pytest.raises(ValueError, match="no room"):
        load_on(torch.device(device), raise_no_room)


def test_every_gpu_is_in_one_instance_alone() -> None:
    dealt = [devices_of(torch.device("cuda", first), 2, visible=6) for first in (0, 2, 4)]
    assert [device.index for devices in dealt for device in devices] == list(range(6))
    assert devices_of(torch.device("cuda", 3), 1, visible=4) == [torch.device("cuda", 3)]
    assert devices_of(torch.device("cpu"), 3, visible=0) == [torch.device("cpu")] * 3


@pytest.mark.parametrize(("first", "ranks", "visible"), [(1, 2, 4), (2, 4, 8), (4, 4, 6), (0, 2, 1)])
def test_gpus_that_another_has_or_that_are_missing_are_refused(first: int, ranks: int, visible: int) -> None:
    with pytest.raises(
        ValueError, match=f"TENSOR_PARALLEL is {ranks}: an instance cannot begin at cuda:{first}"
    ):
        devices_of(torch.device("cuda", first), ranks, visible)


@pytest.mark.parametrize(("cores", "processes", "threads"), [(8, 1, 3), (2, 1, 2), (2, 2, 1), (1, 4, 1)])
def test_a_process_has_no_more_threads_than_its_share_of_the_cores(
    cores: int, processes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start, "usable_cores", lambda: cores)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        use(torch.device("cpu"), processes)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
