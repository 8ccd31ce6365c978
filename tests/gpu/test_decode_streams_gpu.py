"""The backup's schedule on real CUDA streams, each lane held up in turn: right, and wrong without any wait."""

import time

import numpy as np
import pytest
import torch

from hiscore.decoding.worker.cuda_queues import CudaStreams
from hiscore.decoding.worker.device_queues import Lane
from hiscore.decoding.worker.offload_schedule import BackupSchedule
from hiscore.settings import BackupProtocol
from tests.support.backup_load import SLOTS, Load, Run
from tests.support.stream_mutations import Kind, Mutated
from tests.support.tensor_memory import TensorMemory

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

# More than 1 ms: longer than the host takes to launch a step of the load, which is what makes lanes fall behind.
SLOW = 2_500_000
DELAYS = {
    "backup slow": {Lane.FORWARD: 0, Lane.BACKUP: SLOW},
    "forward slow": {Lane.FORWARD: SLOW, Lane.BACKUP: 0},
}
PROTOCOLS: list[BackupProtocol] = ["ring", "deferred", "blocking"]


class Streams(Mutated, TensorMemory, CudaStreams):
    """CUDA streams and memory, one kind of call left out."""


def run(load: Load, delay: str, drop: Kind | None = None) -> Streams:
    device = torch.device("cuda")
    on = Streams(device, DELAYS[delay], device)
    on.drop = drop
    torch.cuda.synchronize()
    Run(load, on, BackupSchedule(on, load.protocol, load.width, SLOTS, 2 * load.pages)).run()
    return on


def loads(protocol: BackupProtocol) -> list[Load]:
    return [Load(protocol, page, 3, seed=page, steps=20) for page in (1, 4)]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_right_with_all_waits_and_wrong_without_any_one(protocol: BackupProtocol) -> None:
    runs = [(load, delay) for load in loads(protocol) for delay in DELAYS]
    kinds: set[Kind] = set()
    for load, delay in runs:
        on = run(load, delay)
        assert not on.faults
        kinds |= set(on.calls)
    assert len(kinds) >= 11
    assert {kind for kind in kinds if not any(run(*x, drop=kind).faults for x in runs)} == set()


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_ring_overlaps(protocol: BackupProtocol) -> None:
    """Forwards of about 30 ms, copies of 120: what has landed when the second forward ends?"""
    device = torch.device("cuda")
    streams = CudaStreams(device)
    schedule = BackupSchedule(streams, protocol, 4, 1, 1)
    nothing = np.empty(0, np.int32)
    schedule.restore(0, 1, nothing, lambda: None)

    def forward() -> None:
        torch.cuda._sleep(50_000_000)

    def copy() -> None:
        torch.cuda._sleep(200_000_000)

    forward()
    torch.cuda.synchronize()
    slots, took = np.zeros(1, np.int32), []
    for position in (1, 2):
        began = time.perf_counter()
        schedule.step(slots, np.array([position], np.int32), forward, copy)
        took.append(time.perf_counter() - began)
    streams[Lane.FORWARD].synchronize()
    assert not schedule.drained(0)
    # Landed: position 1 where the second forward waited for its copy, only the prompt (0) under the ring.
    assert schedule.lag()[0] == (2 if protocol == "ring" else 1)
    # The host waits for the first forward under `blocking`, and for nothing else anywhere.
    assert (took[1] > 0.01) == (protocol == "blocking")
    assert took[0] < 0.01
    torch.cuda.synchronize()
    assert schedule.drained(0)
