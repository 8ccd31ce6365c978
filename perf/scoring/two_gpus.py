"""One server over two and over four GPUs against one over the first: throughput in turns, and equal scores.

usage: python -m perf.scoring.two_gpus --out DIR [--gpus 2,4] [--rounds N] [--seconds S]

All servers run at once, but only one has work at a time. Every answer is compared with the first one to the same
call, whichever server and device gave it; the scorer's counters tell which devices took part. Without a GPU,
instances on the CPU stand in for GPUs, as a rehearsal whose numbers mean nothing. Exits with 1 if scores differ, a
device did less than half of its share, or several GPUs are below `AIMS`.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.arrays import Float32
from hiscore.launcher import Server
from hiscore.launcher.device_choice import choose_device
from hiscore_client import ScoreClient
from perf.loadgen import load_plan
from perf.loadgen.generators import Generators
from perf.loadgen.score_check import check_contrast, check_control, scores_of
from perf.loadgen.scorer_calls import Ids, draw
from perf.loadgen.scorer_counters import items_by_device
from perf.loadgen.served import limit_threads, server_settings
from perf.loadgen.window import Answers, Meter, Point, Window, WrongScores
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler, visible_gpus
from perf.machine.interleave import interleave
from perf.models import checkpoints
from perf.script import arguments, by_comma, failed, write_json

# A call alone goes to any idle instance; sent this often, every device answers it at least once.
MOST_ASKED = 40
COUNTED_S = 5.0


def answers_by_device(server: Server, call: Ids, devices: int) -> dict[str, Float32]:
    """Send a call alone until every device has answered it: scores by device, float32 [items, labels]."""
    found: dict[str, Float32] = {}
    with ScoreClient(server.grpc_url) as client:
        for _ in range(MOST_ASKED):
            before = items_by_device(server)
            scores = scores_of(client, call)
            found.setdefault(_which_rose(server, before, len(call.items)), scores)
            if len(found) == devices:
                break
    return found


def _which_rose(server: Server, before: dict[str, int], items: int) -> str:
    """The device whose counter rose by these items; a batch is counted just after its answer is sent."""
    until = time.monotonic() + COUNTED_S
    while time.monotonic() < until:
        risen = {name: count - before.get(name, 0) for name, count in items_by_device(server).items()}
        if sum(risen.values()) >= items:
            (device,) = (name for name, count in risen.items() if count)
            return device
        time.sleep(0.005)
    raise WrongScores("no device has counted the items of an answered call")


def compare_devices(server: Server, calls: list[Ids], devices: int, tolerance: float) -> dict[str, Any]:
    """The largest difference between devices over some calls; which of them answered; the neighbour's as control.

    Raises:
        WrongScores: devices disagree, or items differ so little that it would not show.
    """
    largest, control = 0.0, 0.0
    answered: set[str] = set()
    for call in calls:
        scores = answers_by_device(server, call, devices)
        first = next(iter(scores.values()))
        control = max(control, float(np.abs(first - np.roll(first, 1, axis=0)).max()))
        largest = max(largest, *(float(np.abs(other - first).max()) for other in scores.values()))
        answered |= scores.keys()
    check_contrast(control, tolerance)
    if largest > tolerance:
        raise WrongScores(f"devices differ by {largest:.2g} in the score of a call")
    return {"largest_difference": largest, "control": control, "devices": sorted(answered)}


AIMS = {2: 1.98, 4: 3.9}
"""Times the items/s of one GPU that so many GPUs should give."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of a run: `in_flight` calls for each device, windows of `seconds` seconds."""

    in_flight: int
    seconds: float
    rounds: int
    alone: int
    """Calls whose answers are compared device by device."""


GPU = Sizes(in_flight=32, seconds=3, rounds=7, alone=4)
CPU = Sizes(in_flight=4, seconds=2, rounds=3, alone=2)


@contextmanager
def visible(devices: str) -> Iterator[None]:
    """Set CUDA_VISIBLE_DEVICES for servers that start while open."""
    before = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = devices
    try:
        yield
    finally:
        if before is None:
            del os.environ["CUDA_VISIBLE_DEVICES"]
        else:
            os.environ["CUDA_VISIBLE_DEVICES"] = before


def measure(
    servers: Mapping[int, Server], gpu: GpuSampler, chosen: load_plan.Plan, sizes: Sizes
) -> dict[str, Any]:
    """Measure the servers in turns, checking every answer; then compare answers device by device.

    Args:
        servers: By number of devices, one device first.
    """
    calls = draw(np.random.default_rng(0), chosen.request, chosen.pool, chosen.vocabulary, chosen.labels)
    messages = [call.message() for call in calls]
    answers = Answers()
    points: list[Point] = []
    with ExitStack() as stack:
        meters = {
            devices: Meter(server, gpu, chosen.tolerance, points.append, answers)
            for devices, server in servers.items()
        }
        generators = {
            devices: stack.enter_context(Generators(server.grpc_url, messages, devices))
            for devices, server in servers.items()
        }

        def window(devices: int) -> float:
            asked = Window("closed", named(devices), chosen.request, pool="calls", seconds=sizes.seconds)
            load = partial(generators[devices].closed_loop, sizes.in_flight, sizes.seconds)
            return meters[devices].window(asked, load).items_per_s

        for each in generators.values():
            check_control(each.closed_loop(sizes.in_flight, sizes.seconds), chosen.tolerance)
        before = {devices: items_by_device(server) for devices, server in servers.items()}
        arms = {named(devices): partial(window, devices) for devices in servers}
        found = interleave(arms, sizes.rounds)
        served = {
            named(devices): _risen(items_by_device(server), before[devices])
            for devices, server in servers.items()
        }
    for name, result in found.items():
        print(f"{name:10s} {result.value!s} items/s, x {result.ratio!s}", flush=True)
    most = max(servers)
    return {
        "groups": {
            "devices": {
                "what": f"one server over so many devices, {sizes.in_flight} calls in flight for each",
                "unit": "items a second",
                "arms": {name: asdict(result) for name, result in found.items()},
            }
        },
        "items_by_device": served,
        "largest_difference": max(point.max_difference for point in points),
        "alone": compare_devices(servers[most], calls[: sizes.alone], most, chosen.tolerance),
    }


def named(devices: int) -> str:
    """The arm's name."""
    return f"{devices} device{'s' * (devices > 1)}"


def _risen(after: Mapping[str, int], before: Mapping[str, int]) -> dict[str, int]:
    return {device: count - before.get(device, 0) for device, count in after.items()}


def main() -> int:
    """Start all servers and measure; writes two_gpus.json."""
    logging.basicConfig(level=logging.WARNING)
    options = parse()
    device, _ = choose_device("auto")
    chosen, sizes = (load_plan.CPU, CPU) if device == "cpu" else (load_plan.GPU, GPU)
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds, seconds=options.seconds or sizes.seconds)
    there = visible_gpus() if device == "cuda" else ["0", "1"]
    counts = [1, *(options.gpus or [count for count in AIMS if count <= len(there)])]
    if device == "cuda" and (len(counts) < 2 or max(counts) > len(there)):
        raise SystemExit(f"{len(there)} GPUs are visible, {max(*counts, 2)} are needed")
    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    limit_threads(device)
    with tempfile.TemporaryDirectory() as directory, GpuSampler() as gpu, ExitStack() as stack:
        checkpoints.write(Path(directory) / "checkpoint", device, None)
        settings = server_settings(
            model=f"{directory}/checkpoint", models="scorer", device=device, query_cache_bytes=0,
        )  # fmt: skip
        servers = {}
        for count in counts:
            # A CPU's instances have a setting of their own.
            of_count = settings.model_copy(update={"cpu_instances": count if device == "cpu" else 1})
            with visible(",".join(there[:count])) if device == "cuda" else nullcontext():
                server = Server(of_count, options.out / f"server-{count}.log")
                servers[count] = stack.enter_context(server)
        triton = triton_version(servers[1].http_url)
        results = measure(servers, gpu, chosen, sizes)
    results |= {
        "machine": machine_facts(options.commit, gpu.device, gpu.driver, triton),
        "sizes": asdict(sizes),
        "aims": {named(count): aim for count, aim in AIMS.items() if device == "cuda" and count in counts},
        "seconds": time.perf_counter() - begin,
    }
    write_json(options.out / "two_gpus.json", results)
    print(f"items by device {results['items_by_device']}; device by device {results['alone']}")
    wrong = failures(results)
    for line in wrong:
        print(failed(line))
    return 1 if wrong else 0


def failures(results: Mapping[str, Any]) -> list[str]:
    """Lines: servers below their aims, devices that did less than half of a share or answered no call alone."""
    arms = results["groups"]["devices"]["arms"]
    found = []
    for name, aim in results["aims"].items():
        if (ratio := arms[name]["ratio"]["median"]) < aim:
            found.append(f"{name} give {ratio:.3f} times the items/s of one, the aim is {aim}")
    for name, served in results["items_by_device"].items():
        devices = int(name.split()[0])
        if len(served) != devices or min(served.values()) < sum(served.values()) / devices / 2:
            found.append(f"of {name} not all had their share: {served}")
    most = max(int(name.split()[0]) for name in arms)
    if len(results["alone"]["devices"]) != most:
        found.append("not every device answered a call alone, so their scores were not compared one by one")
    return found


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "two_gpus.json and the logs")
    parser.add_argument(
        "--gpus", type=lambda text: [int(part) for part in by_comma(text)],
        help="numbers of GPUs to compare with one, comma-separated; by default 2 and 4, as far as there are",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, help="how often each server is loaded")
    parser.add_argument("--seconds", type=float, help="length of a window")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
