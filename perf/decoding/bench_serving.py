"""SGLang's own serving benchmark against `decode` through the HTTP API, as it was published for HiSparse.

usage: python -m perf.decoding.bench_serving --out DIR [--model DIR | --tokenizer DIR] [--client COMMAND]
           [--prompt 8192] [--tokens 1500] [--backups ring,blocking]

30 prompts through /v1/chat/completions, five at a time, arriving at 5.6 a second, greedy: the arguments with which
SGLang's pull request on asynchronous backup was measured. Each offload protocol has its own server. The client is
SGLang's, from an environment that has it. The checkpoint needs a chat template; --tokenizer has one and gives it
to random weights of Qwen3-0.6B's geometry. Without a GPU texts are short: a rehearsal whose numbers mean nothing.
"""

import argparse
import json
import logging
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.checkpoint import resolve
from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore.launcher.device_choice import choose_device
from hiscore.settings import DEFAULT_MODEL
from perf.loadgen.served import server_settings
from perf.loadgen.text_calls import WORDS
from perf.machine.facts import machine_facts, triton_version
from perf.machine.gpu_sampler import GpuSampler
from perf.models import checkpoints
from perf.script import arguments, by_comma, failed, write_json

PROMPTS, AT_ONCE, PER_SECOND = 30, 5, 5.6
REPORTED = (
    "completed", "duration", "total_input_tokens", "total_output_tokens", "output_throughput",
    "mean_ttft_ms", "median_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_tpot_ms",
    "mean_itl_ms", "median_itl_ms", "p99_itl_ms",
)  # fmt: skip


def conversations(path: Path, count: int) -> None:
    """Write what the client takes texts from: it repeats or cuts each to the length that is asked for."""
    rng = np.random.default_rng(0)
    turns = [
        {
            "id": str(index),
            "conversations": [
                {"from": who, "value": " ".join(rng.choice(WORDS, 60))} for who in ("human", "gpt")
            ],
        }
        for index in range(count)
    ]
    path.write_text(json.dumps(turns))


def run_client(
    options: argparse.Namespace, checkpoint: Path, api: Api, directory: Path, log: Path
) -> dict[str, Any]:
    """What the client reports; what it prints goes to `log`.

    Raises:
        RuntimeError: It failed, or not every request was answered with all of its tokens.
    """
    texts, report = directory / "conversations.json", directory / "report.jsonl"
    conversations(texts, 2 * PROMPTS)
    report.unlink(missing_ok=True)
    host, port = api.url.removeprefix("http://").rsplit(":", 1)
    given = {
        "host": host, "port": port, "backend": "sglang-oai-chat", "model": checkpoint,
        "dataset-name": "random", "dataset-path": texts, "num-prompt": PROMPTS,
        "random-input": options.prompt, "random-output": options.tokens, "random-range-ratio": 1,
        "request-rate": PER_SECOND, "max-concurrency": AT_ONCE, "warmup-requests": 2, "output-file": report,
    }  # fmt: skip
    command = [
        *shlex.split(options.client),
        *(str(part) for key, value in given.items() for part in (f"--{key}", value)),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    log.write_text(done.stdout + done.stderr)
    if done.returncode or not report.exists():
        raise RuntimeError(f"the client ended with {done.returncode}: see {log.name}")
    found = json.loads(report.read_text().splitlines()[-1])
    if found["completed"] != PROMPTS or found["total_output_tokens"] != PROMPTS * options.tokens:
        raise RuntimeError(f"{found['completed']} requests with {found['total_output_tokens']} tokens")
    return {name: found[name] for name in REPORTED}


def main() -> int:
    """Serve and measure; writes bench_serving.json after each protocol."""
    logging.basicConfig(level=logging.WARNING)
    rehearsal = choose_device("auto")[0] == "cpu"
    options = parse(rehearsal)
    options.out.mkdir(parents=True, exist_ok=True)
    results: dict[str, Any] = {"prompt": options.prompt, "tokens": options.tokens, "arms": {}}
    bad = 0
    with GpuSampler() as gpu, tempfile.TemporaryDirectory() as written:
        checkpoint = Path(written)
        if options.tokenizer and not rehearsal:
            checkpoints.write(checkpoint, "cuda", options.tokenizer, readable=True)
        else:
            checkpoint = resolve(options.model or DEFAULT_MODEL)
        for backup in options.backups:
            settings = server_settings(
                model=str(checkpoint), models="decode", backup=backup, prefix_cache=False, api_port=0
            )
            log = options.out / f"server-{backup}.log"
            with tempfile.TemporaryDirectory() as directory, Server(settings, log) as server:
                results["machine"] = machine_facts(
                    options.commit, gpu.device, gpu.driver, triton_version(server.http_url)
                )
                with Api(
                    settings,
                    server.checkpoint,
                    server.grpc_url,
                    server.models,
                    log.with_stem(f"api-{backup}"),
                ) as api:
                    try:
                        found = run_client(
                            options,
                            server.checkpoint,
                            api,
                            Path(directory),
                            log.with_stem(f"client-{backup}"),
                        )
                    except RuntimeError as error:
                        bad += 1
                        print(failed(f"{backup}: {error}"), flush=True)
                        continue
            results["arms"][backup] = found
            print(
                f"{backup:8s} {found['output_throughput']:.0f} tokens/s, a token {found['mean_tpot_ms']:.2f} ms, "
                f"between tokens p99 {found['p99_itl_ms']:.2f}, first token p50 {found['median_ttft_ms']:.0f}",
                flush=True,
            )
            write_json(options.out / "bench_serving.json", results)
    return int(bad > 0)


def parse(rehearsal: bool) -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "bench_serving.json and logs")
    parser.add_argument("--model", help="a checkpoint with a chat template; default: the default model")
    parser.add_argument("--tokenizer", type=Path, help="of random weights: a directory with tokenizer.json")
    parser.add_argument(
        "--client", default="python3 -m sglang.bench_serving", help="how SGLang's client is run"
    )
    parser.add_argument("--prompt", type=int, default=96 if rehearsal else 8_192, help="tokens")
    parser.add_argument("--tokens", type=int, default=8 if rehearsal else 1_500)
    parser.add_argument("--backups", type=by_comma, default=["ring", "blocking"])
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
