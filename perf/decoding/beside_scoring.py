"""Scoring and decoding at once on one GPU, through the real server: what each costs the other.

usage: python -m perf.decoding.beside_scoring --out DIR [--rate 70] [--streams 16] [--seconds 15] [--rounds 2]
           [--selector quest]

Poisson arrivals at `scorer` alone and with running requests to `decode`, in the order A B B A; then the decode
requests alone. Every answer is compared with the first one to the same call. Without a GPU a tiny model is served,
as a rehearsal whose numbers mean nothing.
"""

import argparse
import logging
import statistics
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.launcher import Server
from hiscore.launcher.device_choice import choose_device
from perf.loadgen import load_plan
from perf.loadgen.decode_clients import ConstantLoad, Flow, running
from perf.loadgen.generator import Generator, poisson
from perf.loadgen.scorer_calls import draw
from perf.loadgen.served import limit_threads, server_settings
from perf.loadgen.window import Meter, Point, Window
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.machine.interleave import in_turns
from perf.models import checkpoints
from perf.script import arguments, write_json

ALONE, BESIDE = "scoring alone", "scoring beside streams"
GIB = 2**30


def measure(
    server: Server, gpu: GpuSampler, chosen: load_plan.Plan, options: argparse.Namespace
) -> dict[str, Any]:
    """Run all windows; the p99 of a condition is the median over its windows."""
    rng = np.random.default_rng(0)
    calls = draw(rng, chosen.request, chosen.pool, chosen.vocabulary, chosen.labels)
    streams = ConstantLoad(options.streams, options.prompt, options.tokens, chosen.vocabulary)
    points: list[Point] = []
    flows: dict[str, list[Flow]] = {"streams alone": [], BESIDE: []}
    meter = Meter(server, gpu, chosen.tolerance, points.append)
    with Generator(server.grpc_url, [call.message() for call in calls]) as generator:

        def window(name: str) -> None:
            arrivals = poisson(rng, options.rate, options.seconds)
            asked = Window("open", name, chosen.request, pool="calls", offered=options.rate)
            streaming = running(server.grpc_url, streams) if name == BESIDE else nullcontext()
            with streaming as found:
                point = meter.window(asked, lambda: generator.open_loop(arrivals))
            beside = ""
            if found:
                assert found.flow
                flows[BESIDE].append(found.flow)
                beside = f"; {described(found.flow)}"
            print(
                f"  {name:24s} p50 {point.p50:8.2f} ms, p99 {point.p99:8.2f}, worst {point.worst:8.2f}, "
                f"{point.calls} calls, {point.failed} failed, late {point.late_p99:.2f}{beside}",
                flush=True,
            )

        generator.closed_loop(8, 2)
        for _, name in in_turns((ALONE, BESIDE), options.rounds):
            window(name)
        with running(server.grpc_url, streams) as found:
            time.sleep(options.seconds / 2)
        assert found.flow
        flows["streams alone"].append(found.flow)
        print(f"  {'streams alone':24s} {described(found.flow)}", flush=True)
    p99 = {
        name: statistics.median(point.p99 for point in points if point.name == name)
        for name in (ALONE, BESIDE)
    }
    return {
        "streams": asdict(streams),
        "points": [asdict(point) for point in points],
        "flows": {name: [asdict(flow) for flow in of] for name, of in flows.items()},
        "p99": p99,
    }


def described(flow: Flow) -> str:
    """The numbers of a flow as a line."""
    return (
        f"{flow.tokens_per_s:.0f} tokens/s, between responses p50 {flow.gap_p50:.2f} ms, p99 {flow.gap_p99:.2f}, "
        f"worst {flow.gap_worst:.1f}"
    )


def main() -> int:
    """Serve and measure; writes decode_beside.json."""
    logging.basicConfig(level=logging.WARNING)
    device, _ = choose_device("auto")
    rehearsal = device == "cpu"
    parser = arguments(__doc__, "decode_beside.json")
    parser.add_argument("--rate", type=float, default=5 if rehearsal else 70, help="calls a second")
    parser.add_argument("--streams", type=int, default=3 if rehearsal else 16)
    parser.add_argument("--prompt", type=int, default=100 if rehearsal else 2_048)
    parser.add_argument("--tokens", type=int, default=30 if rehearsal else 512)
    parser.add_argument("--seconds", type=float, default=3 if rehearsal else 15)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--selector", default="quest")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    chosen = load_plan.CPU if rehearsal else load_plan.GPU
    limit_threads(device)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory, GpuSampler() as gpu:
        checkpoints.write(Path(directory), device, None)
        settings = server_settings(
            model=directory,
            models="scorer,decode",
            device=device,
            selector=options.selector,
            max_streams=options.streams,
            # The sequences' keys and values take 5 GiB at most; pinning more would only take time.
            host_kv_bytes=GIB // 16 if rehearsal else 8 * GIB,
            device_kv_bytes=GIB // 16 if rehearsal else 16 * GIB,
            sparse_top_k=64 if rehearsal else 1_024,
            device_buffer_size=128 if rehearsal else 2_048,
            query_cache_bytes=0,
            prefix_cache=False,
        )
        with Server(settings, options.out / "server-beside.log") as server:
            ready = time.perf_counter() - begin
            print(f"on {device}, ready after {ready:.1f} s", flush=True)
            triton = triton_version(server.http_url)
            results = measure(server, gpu, chosen, options)
        results |= {
            "machine": machine_facts(options.commit, gpu.device, gpu.driver, triton),
            "settings": settings.model_dump(mode="json", exclude={"model"}),
            "seconds": time.perf_counter() - begin,
        }
    write_json(options.out / "decode_beside.json", results)
    alone, beside = results["p99"][ALONE], results["p99"][BESIDE]
    print(
        f"p99 at {options.rate:g} calls/s: alone {alone:.2f} ms, beside {options.streams} streams {beside:.2f} ms"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
