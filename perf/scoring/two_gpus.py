"""One server over all visible GPUs against one over the first GPU: throughput in turns, and equal scores.

usage: python -m perf.scoring.two_gpus --out DIR [--rounds N]

Both servers run at once, but only one has work at a time. Every answer is compared with the first one to the same
call, whichever server and device gave it; the scorer's counters tell which devices took part. Without a GPU, two
instances on the CPU stand in for two GPUs, as a rehearsal whose numbers mean nothing. Exits with 1 if scores
differ, or if a device did less than half of its share.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from collections.abc import Iterator
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
from perf.loadgen.generator import Generator
from perf.loadgen.score_check import check_contrast, check_control, scores_of
from perf.loadgen.scorer_calls import Ids, draw
from perf.loadgen.served import limit_threads, server_settings
from perf.loadgen.window import Answers, Meter, Point, Window, WrongScores, items_by_device
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler, visible_gpus
from perf.machine.interleave import interleave
from perf.models import checkpoints
from perf.script import arguments, failed, write_json

# A call alone goes to any idle instance; sent this often, every device answers it at least once.
MOST_ASKED = 40
COUNTED_S = 5.0


@dataclass(frozen=True)
class Sizes:
    """How much is measured: `in_flight` calls for each device, windows of `seconds` seconds."""

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


def measure(
    servers: dict[str, Server], gpu: GpuSampler, chosen: load_plan.Plan, sizes: Sizes, devices: int
) -> dict[str, Any]:
    """Measure both servers in turns, checking every answer; then compare answers device by device."""
    calls = draw(np.random.default_rng(0), chosen.request, chosen.pool, chosen.vocabulary, chosen.labels)
    messages = [call.message() for call in calls]
    in_flight = {"one device": sizes.in_flight, "all devices": sizes.in_flight * devices}
    answers = Answers()
    points: list[Point] = []
    with ExitStack() as stack:
        meters, generators = {}, {}
        for name, server in servers.items():
            meters[name] = Meter(server, gpu, chosen.tolerance, points.append, answers)
            generators[name] = stack.enter_context(Generator(server.grpc_url, messages))

        def window(name: str) -> float:
            asked = Window("closed", name, chosen.request, pool="calls", seconds=sizes.seconds)
            load = partial(generators[name].closed_loop, in_flight[name], sizes.seconds)
            return meters[name].window(asked, load).items_per_s

        for name in servers:
            check_control(generators[name].closed_loop(in_flight[name], sizes.seconds), chosen.tolerance)
        before = items_by_device(servers["all devices"])
        found = interleave({name: partial(window, name) for name in servers}, sizes.rounds)
        after = items_by_device(servers["all devices"])
    served = {device: count - before.get(device, 0) for device, count in after.items()}
    for name, result in found.items():
        print(
            f"{name:12s} {result.value!s} items/s, {in_flight[name]} in flight, x {result.ratio!s}",
            flush=True,
        )
    return {
        "groups": {
            "devices": {
                "what": f"one of {devices} devices, or all of them",
                "unit": "items a second",
                "arms": {name: asdict(result) for name, result in found.items()},
            }
        },
        "items_by_device": served,
        "largest_difference": max(point.max_difference for point in points),
        "alone": compare_devices(servers["all devices"], calls[: sizes.alone], devices, chosen.tolerance),
    }


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


def main() -> int:
    """Start both servers and measure; writes two_gpus.json."""
    logging.basicConfig(level=logging.WARNING)
    options = parse()
    device, _ = choose_device("auto")
    chosen, sizes = (load_plan.CPU, CPU) if device == "cpu" else (load_plan.GPU, GPU)
    sizes = replace(sizes, rounds=options.rounds or sizes.rounds)
    names = visible_gpus() if device == "cuda" else ["first", "second"]
    if len(names) < 2:
        raise SystemExit(f"{len(names)} GPU is visible, two or more are needed")
    begin = time.perf_counter()
    options.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as directory, GpuSampler() as gpu, ExitStack() as stack:
        checkpoints.write(Path(directory) / "checkpoint", device, None)
        settings = server_settings(
            model=f"{directory}/checkpoint", models="scorer", device=device, query_cache_bytes=0,
        )  # fmt: skip
        several = settings
        if device == "cpu":
            limit_threads(device)
            several = settings.model_copy(update={"cpu_instances": 2})
        with visible(names[0]) if device == "cuda" else nullcontext():
            one = stack.enter_context(Server(settings, options.out / "server-one.log"))
        every = stack.enter_context(Server(several, options.out / "server-all.log"))
        triton = triton_version(one.http_url)
        results = measure({"one device": one, "all devices": every}, gpu, chosen, sizes, len(names))
    results |= {
        "machine": machine_facts(options.commit, gpu.device, gpu.driver, triton),
        "sizes": asdict(sizes),
        "seconds": time.perf_counter() - begin,
    }
    write_json(options.out / "two_gpus.json", results)
    print(f"items by device {results['items_by_device']}; device by device {results['alone']}")
    return verdict(results, len(names))


def verdict(results: dict[str, Any], devices: int) -> int:
    """The exit code: 1 if a device did less than half of its share or never answered a call alone."""
    served = results["items_by_device"]
    fair = sum(served.values()) / devices
    if len(served) != devices or min(served.values()) < fair / 2:
        print(failed(f"of {devices} devices not all had their share"))
        return 1
    if len(results["alone"]["devices"]) != devices:
        print(failed("not every device answered a call alone, so their scores were not compared one by one"))
        return 1
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "two_gpus.json and the logs")
    parser.add_argument("--rounds", type=int, help="how often each server is loaded")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
