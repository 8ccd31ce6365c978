"""Latents of a layer that a step misses: read by each rank of the whole pool, or of its share and merged.

usage: python -m perf.decoding.merged_latents --out DIR [--ranks 2,4] [--streams 1,5,16,64] [--missing 64,256,2048]

DeepSeek-V3.2's rows in bfloat16, of which a sequence selects 2,048 and misses so many in a layer. Times are of one
layer, from a CUDA graph of several, and the slowest rank's. Every row is then compared with what it should be.
Without a GPU the rows are few and kernels run in Triton's interpreter: a rehearsal whose numbers mean nothing.
"""

import os
import sys
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

if not torch.cuda.is_available():
    # It is read when a kernel is defined.
    os.environ["TRITON_INTERPRET"] = "1"

from hiscore.parallel.leader import lead
from perf.decoding.missed_latents import Case, arrive, time_case
from perf.machine.facts import process_facts
from perf.script import arguments, by_comma, write_json


def main() -> int:
    parser = arguments(__doc__, "merged_latents.json")
    for name, values in (("ranks", "2"), ("streams", "1,5,16,64"), ("missing", "64,256,2048")):
        parser.add_argument(f"--{name}", type=by_comma, default=values.split(","))
    options = parser.parse_args()
    cuda = torch.cuda.is_available()
    selected, width = (2_048, 576) if cuda else (8, 16)
    results: dict[str, Any] = {"facts": process_facts(options.commit), "cases": []}
    for ranks in map(int, options.ranks):
        devices = [torch.device("cuda", rank) if cuda else torch.device("cpu") for rank in range(ranks)]
        leader = lead(devices)
        leader.prepare(arrive)
        try:
            for streams in map(int, options.streams):
                for missing in {min(int(each), selected): None for each in options.missing}:
                    alone, merged = (
                        leader.do(
                            partial(time_case, case=Case(streams, selected, missing, width, shared)),
                            wait_for_all=True,
                        )
                        for shared in (False, True)
                    )
                    case = asdict(Case(streams, selected, missing, width, shared=True))
                    results["cases"].append({"ranks": ranks, **case, "alone_s": alone, "merged_s": merged})
                    print(
                        f"{ranks} ranks, {streams} sequences, {missing} of {selected} rows missing: "
                        f"read by each {alone * 1e6:.0f} us, merged {merged * 1e6:.0f} us a layer",
                        flush=True,
                    )
        finally:
            leader.close()
    write_json(options.out / "merged_latents.json", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
