"""The same /v1/decisions calls to several servers in turns: questions of 40 words about one state of 1,000.

usage: python -m perf.scoring.decision_routes --out DIR --checkpoint DIR NAME=URL [NAME=URL ...]

The servers run already, on one machine and with the same weights; --checkpoint has their tokenizer. On a GPU host,
beside SGLang's own route, which makes a whole prompt of each question:

    make serve MODEL=DIR MODELS=tokenizer,scorer,score QUERY_CACHE_BYTES=0
    python3 -m sglang.launch_server --model-path DIR --port 30000 --disable-radix-cache --mem-fraction-static 0.4
    python -m perf.scoring.decision_routes --out OUT --checkpoint DIR \\
        hiscore=http://127.0.0.1:8080 sglang=http://127.0.0.1:30000
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from perf.loadgen.api_calls import decision_call, over_http
from perf.machine.facts import machine_facts
from perf.script import arguments, write_json

CONTEXT = 32_768


def measure(urls: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Milliseconds of each server by number of questions; every round has a state and questions of its own."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for count in options.questions:
        took: dict[str, list[float]] = {name: [] for name in urls}
        for turn in range(options.rounds + 1):
            call = decision_call(rng, options.state, count, options.words, options.checkpoint, CONTEXT)
            for name in sorted(urls, reverse=bool(turn % 2)):
                once = over_http(urls[name], call)
                start = time.perf_counter()
                once()
                if turn:  # the first warms up
                    took[name].append(1e3 * (time.perf_counter() - start))
        found[str(count)] = {
            name: {
                "p50_ms": statistics.median(each),
                "min_ms": min(each),
                "questions_a_second": 1e3 * count / statistics.median(each),
            }
            for name, each in took.items()
        }
        shown = ", ".join(
            f"{name} {each['p50_ms']:.1f} ms, {each['questions_a_second']:.0f} questions/s"
            for name, each in found[str(count)].items()
        )
        print(f"{count:3d} questions: {shown}", flush=True)
    return found


def main() -> int:
    """Measure; writes decision_routes.json."""
    parser = arguments(__doc__, "decision_routes.json")
    parser.add_argument("urls", nargs="+", metavar="NAME=URL")
    parser.add_argument(
        "--checkpoint", type=Path, required=True, help="a directory with the servers' tokenizer"
    )
    parser.add_argument("--questions", type=int, nargs="+", default=[1, 10, 50, 400])
    parser.add_argument("--state", type=int, default=1_000, help="words of the state, of about a token each")
    parser.add_argument("--words", type=int, default=40, help="words of a question")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args()
    urls = dict(each.split("=", 1) for each in options.urls)
    sizes = {name: getattr(options, name) for name in ("questions", "state", "words", "rounds")}
    results = {
        "routes": measure(urls, options),
        "sizes": sizes,
        "machine": machine_facts(options.commit, None),
    }
    write_json(options.out / "decision_routes.json", results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
