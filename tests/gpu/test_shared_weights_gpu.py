"""Weights of two processes in one GPU's memory, by CUDA's memory between processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hiscore.server.shared_weights import SharedWeights

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

SIZE = 2**30
READER = """
import os, sys, torch
from pathlib import Path
from hiscore.device.copies import free_bytes
from hiscore.server.shared_weights import SharedWeights
os.getppid = lambda: int(sys.argv[2])
def never(): raise AssertionError("loaded once more")
torch.cuda.init(); torch.zeros(1, device="cuda")
before = free_bytes(torch.device("cuda:0"))
shared = SharedWeights(Path(sys.argv[1]))
large, small, view = shared.load("key", never)
print(before - free_bytes(torch.device("cuda:0")), int(large[-1]), small.tolist(), view.tolist(), flush=True)
sys.stdin.readline()
large[0] = 7
torch.cuda.synchronize()
print("written", flush=True)
sys.stdin.readline()
"""


def load() -> tuple[torch.Tensor, ...]:
    large = torch.full((SIZE,), 5, dtype=torch.uint8, device="cuda:0")
    small = torch.arange(8, device="cuda:0")
    return large, small, small[2:6:2]


def test_a_second_process_maps_what_the_first_has_loaded(tmp_path: Path) -> None:
    owner = SharedWeights(tmp_path)
    large, _, _ = owner.load("key", load)
    command = [sys.executable, "-c", READER, str(tmp_path), str(os.getppid())]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdin is not None
    taken, last, rest = reader.stdout.readline().split(maxsplit=2)
    assert int(taken) < SIZE // 2, "a copy would take all of it"
    assert (int(last), rest.strip()) == (5, "[0, 1, 2, 3, 4, 5, 6, 7] [2, 4]")
    reader.stdin.write("\n")
    reader.stdin.flush()
    assert reader.stdout.readline().strip() == "written"
    torch.cuda.synchronize()
    assert int(large[0]) == 7, "one memory"
    reader.stdin.close()
    assert reader.wait() == 0
    owner.close()
