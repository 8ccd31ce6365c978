"""Take the time of a call apart, by text and by ids, from Triton's trace of calls sent one at a time.

usage: python -m perf.scoring.trace --out DIR [--checkpoint DIR] [--calls N]

Triton's trace and the client read the same clock, so the stages leave no gap. The stages inside the scorer are
timed in this process, on the same calls, without a server. On a GPU the weights are random, with Qwen3-0.6B's
geometry, and the tokenizer is the checkpoint's (default: the demo's model).
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch

from hiscore.checkpoint import resolve
from hiscore.launcher import Server
from hiscore.launcher import server as server_module
from hiscore.launcher.command import tritonserver_flags
from hiscore.models.facts import read_facts
from hiscore.scoring import decoder_scorer
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.packing import packing
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.text.encode import RequestEncoder, TokenizedRequest
from hiscore.scoring.text.encoding_plan import TextRequest
from hiscore.settings import Device, Limits
from hiscore.tokenization.tokenizer import load_tokenizer
from hiscore_client import ScoreClient
from perf.loadgen.scorer_calls import Shape
from perf.loadgen.served import limit_threads, server_settings
from perf.loadgen.text_calls import draw_texts
from perf.machine.facts import machine_facts, triton_version
from perf.models import checkpoints
from perf.script import arguments, write_json


@dataclass
class Request:
    """A request to a model: timestamps in nanoseconds by name, and the requests that an ensemble made of it."""

    model: str
    stamps: dict[str, int] = field(default_factory=dict)
    children: dict[str, "Request"] = field(default_factory=dict)


def read_trace(entries: Sequence[Mapping[str, Any]]) -> list[Request]:
    """The requests of clients in order of arrival, from the entries of Triton's trace file."""
    named = {entry["id"]: entry for entry in entries if "model_name" in entry}
    found = {number: Request(entry["model_name"]) for number, entry in named.items()}
    for entry in entries:
        for stamp in entry.get("timestamps", ()):
            found[entry["id"]].stamps.setdefault(stamp["name"], stamp["ns"])
    roots = []
    for number, entry in named.items():
        if "parent_id" in entry:
            found[entry["parent_id"]].children[entry["model_name"]] = found[number]
        else:
            roots.append(found[number])
    return sorted(roots, key=lambda request: request.stamps["GRPC_WAITREAD_END"])


def stages(request: Request, sent: int, done: int) -> dict[str, float]:
    """Milliseconds by stage, in order.

    Args:
        sent: When the client made the call, in the trace's nanoseconds.
        done: When it had the answer.

    Raises:
        ValueError: The timestamps are out of order, so the request is not that of this call.
    """
    scorer = request.children.get("scorer", request)
    tokenizer = request.children.get("tokenizer")
    marks = [
        ("", sent),
        ("client and network, there", request.stamps["GRPC_WAITREAD_END"]),
        *([("Triton and tokenizer", tokenizer.stamps["COMPUTE_END"])] if tokenizer else []),
        ("Triton, before the scorer", scorer.stamps["COMPUTE_START"]),
        ("scorer", request.stamps["INFER_RESPONSE_COMPLETE"]),
        # The client may have its answer before the server has recorded the end of sending.
        ("gRPC, network and client, back", done),
    ]
    found = {name: (after - before) / 1e6 for (_, before), (name, after) in pairwise(marks)}
    if min(found.values()) < 0:
        raise ValueError(f"the trace is not of this call: {found}")
    return found


SHAPES = {"cuda": Shape(120, 10, 180), "cpu": Shape(24, 3, 8)}
CALLS = {"cuda": 200, "cpu": 12}
WARM = 5
LABELS = (9, 7)
BUDGET = 16_384
Text = tuple[str, list[str]]


def inside(checkpoint: Path, device: Device, calls: Sequence[ScoreRequest]) -> dict[str, float]:
    """Mean milliseconds by stage of what the scorer does with a call alone, timed in this process."""
    scorer = load_decoder_scorer(checkpoint, device, max_batch_tokens=BUDGET, query_cache_bytes=0)
    packed: list[float] = []

    def timed(*arguments: Any) -> Any:
        begin = time.perf_counter()
        batch = packing.pack(*arguments)
        packed.append(time.perf_counter() - begin)
        return batch

    launched, waited, read = [], [], []
    with mock.patch.object(decoder_scorer, "pack", timed):
        for call in calls:
            begin = time.perf_counter()
            pending = scorer.submit([call])
            submitted = time.perf_counter()
            pending._wait()
            copied = time.perf_counter()
            pending.result()
            launched.append(submitted - begin)
            waited.append(copied - submitted)
            read.append(time.perf_counter() - copied)
    launched_only = [a - b for a, b in zip(launched, packed, strict=True)]
    found = {"scorer: pack and plan": packed}
    if device == "cuda":
        found |= {"scorer: launch": launched_only, "scorer: waiting for GPU and copy": waited}
    else:
        found |= {"scorer: forward": launched_only}
    found |= {"scorer: logits to scores": read}
    return {name: 1e3 * statistics.mean(values[WARM:]) for name, values in found.items()}


def split(measured: Mapping[str, float], parts: Mapping[str, float]) -> dict[str, float]:
    """Split the scorer's stage into its parts; what remains is reading, queueing and responding."""
    found = {}
    for name, value in measured.items():
        if name != "scorer":
            found[name] = value
            continue
        rest = value - sum(parts.values())
        # The parts were timed in another process and may add up to more than the stage.
        found |= parts if rest > 0 else {"scorer: all": value}
        if rest > 0:
            found["scorer: the call in, the answer out"] = rest
    return found


def mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Means by stage."""
    return {name: statistics.mean(row[name] for row in rows) for name in rows[0]}


@contextmanager
def tracing(file: Path) -> Iterator[None]:
    """While open, servers that start trace every request into a file, complete once they have stopped."""
    asked = ["mode=triton", f"triton,file={file}", "level=TIMESTAMPS", "rate=1", "count=-1"]

    def with_trace(*arguments: Any, **more: Any) -> list[str]:
        return [*tritonserver_flags(*arguments, **more), *(f"--trace-config={option}" for option in asked)]

    with mock.patch.object(server_module, "tritonserver_flags", with_trace):
        yield


def ask(
    server: Server, texts: Sequence[Text], calls: Sequence[TokenizedRequest]
) -> dict[str, list[tuple[int, int]]]:
    """Send every call by text and by ids: when each was sent and answered, in monotonic nanoseconds."""
    found: dict[str, list[tuple[int, int]]] = {"by text": [], "by ids": []}
    with ScoreClient(server.grpc_url) as client:
        for (query, items), call in zip(texts, calls, strict=True):
            layout = call.prompt
            ids = np.split(layout.tokens, layout.query_length + np.cumsum([0, *layout.item_lengths[:-1]]))
            begin = time.monotonic_ns()
            by_text = client.score(query, items, label_token_ids=LABELS, apply_softmax=True)
            found["by text"].append((begin, time.monotonic_ns()))
            lists = [part.tolist() for part in ids]
            begin = time.monotonic_ns()
            by_ids = client.score_ids(lists[0], lists[1:], LABELS, apply_softmax=True)
            found["by ids"].append((begin, time.monotonic_ns()))
            # The contract's tolerance for bfloat16.
            if not np.abs(by_text.scores - by_ids.scores).max() <= 5e-3:
                raise SystemExit("a call by text and by its ids got different scores")
    return found


def encode(checkpoint: Path, texts: Sequence[Text]) -> list[TokenizedRequest]:
    """Tokenize the texts as the server does."""
    labels, tokenizer, facts = np.array(LABELS, np.int32), load_tokenizer(checkpoint), read_facts(checkpoint)
    calls = []
    encoder = RequestEncoder(tokenizer, Limits(), facts)
    for query, items in texts:
        asked = TextRequest(query, items, label_token_ids=labels)
        (call,) = encoder.encode([encoder.plan(asked)])
        assert isinstance(call, TokenizedRequest)
        calls.append(call)
    return calls


def main() -> int:
    """Serve with tracing and evaluate the trace; writes trace.json."""
    options = parse()
    device: Device = "cuda" if torch.cuda.is_available() else "cpu"
    limit_threads(device)
    options.out.mkdir(parents=True, exist_ok=True)
    given = options.checkpoint or resolve()
    count = WARM + (options.calls or CALLS[device])
    texts = draw_texts(np.random.default_rng(0), SHAPES[device], count)
    with tempfile.TemporaryDirectory() as directory:
        checkpoint, log = given, Path(directory) / "trace.json"
        if device == "cuda":
            checkpoint = Path(directory) / "checkpoint"
            checkpoint.mkdir()
            checkpoints.write(checkpoint, device, given)
        calls = encode(checkpoint, texts)
        settings = server_settings(
            model=str(checkpoint), models="score,tokenizer,scorer", device=device, query_cache_bytes=0,
        )  # fmt: skip
        with tracing(log), Server(settings, options.out / "server-trace.log") as server:
            triton = triton_version(server.http_url)
            asked = ask(server, texts, calls)
        requests = read_trace(json.loads(log.read_text()))
        score_options = ScoreOptions(apply_softmax=True)
        parts = inside(
            checkpoint,
            device,
            [ScoreRequest(call.prompt, call.label_token_ids, score_options) for call in calls],
        )
    rows = {}
    for way, model in (("by text", "score"), ("by ids", "scorer")):
        mine = [request for request in requests if request.model == model]
        taken = [stages(request, *times) for request, times in zip(mine, asked[way], strict=True)]
        rows[f"{way}, {SHAPES[device]}"] = split(mean(taken[WARM:]), parts)
    gpu = torch.cuda.get_device_name() if device == "cuda" else None
    found = {
        "machine": machine_facts(options.commit, gpu, tritonserver=triton),
        "calls": count - WARM,
        "stages": rows,
    }
    write_json(options.out / "trace.json", found)
    for name, row in rows.items():
        print(name, " ".join(f"| {stage} {value:.2f}" for stage, value in row.items()), "ms")
    return 0


def parse() -> argparse.Namespace:
    """The command line."""
    parser = arguments(__doc__, "trace.json")
    parser.add_argument("--checkpoint", type=Path, help="model to serve; on a GPU only its tokenizer is used")
    parser.add_argument("--calls", type=int, help="calls by text and by ids")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
