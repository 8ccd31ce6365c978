"""``hiscore demo``: start a server with a small real model, score items through the SDK and chat over HTTP.

The server is always stopped at the end. Exit code: 0 on success, 130 after Ctrl-C, otherwise 1.
"""

import json
import logging
import shutil
import sys
import tempfile
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from hiscore.checkpoint import CheckpointError, resolve
from hiscore.launcher import LaunchError, Server
from hiscore.launcher.api import Api
from hiscore.settings import DEFAULT_MODEL, ServeSettings
from hiscore_client import HiscoreError, ScoreClient

SENTIMENT_QUERY = "Decide if a movie review is positive or negative.\n\nReview: "
REVIEWS = (
    "I loved every minute of it.",
    "A dull, lifeless mess.",
    "The best film I have seen in years.",
    "I want my money back.",
    "Warm, funny and beautifully acted.",
    "It was boring and far too long.",
)
CAPITALS_QUERY = "Geography facts: the capital of "
CAPITALS = {"France": " Paris", "Italy": " Rome", "Germany": " Berlin", "Japan": " Tokyo"}
QUESTION = "What is the capital of France? Answer in one sentence."


def main() -> int:
    """Run the demo and return its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    console = Console(highlight=False)
    log_path = Path(tempfile.mkdtemp(prefix="hiscore-demo-")) / "server.log"
    try:
        resolve(DEFAULT_MODEL)
        settings = ServeSettings(
            model=DEFAULT_MODEL, models="", http_port=0, grpc_port=0, metrics_port=0, api_port=0
        )
        console.print(f"Starting tritonserver with {DEFAULT_MODEL} (10 to 60 seconds) ...")
        started = time.perf_counter()
        with ExitStack() as stack:
            with console.status("Loading the models"):
                server = stack.enter_context(Server(settings, log_path))
            seconds = time.perf_counter() - started
            console.print(f"Ready on {server.grpc_url} (gRPC) after {seconds:.1f} s.\n")
            with ScoreClient(server.grpc_url) as client:
                rank_reviews(console, client)
                score_capitals(console, client)
            if "decode" in server.models:
                api = Api(settings, server.checkpoint, server.grpc_url, server.models, log_path)
                with api:
                    chat(console, api.url)
            console.print("Stopping the server ...")
    except (CheckpointError, LaunchError, HiscoreError, ValidationError) as error:
        print(f"error: the demo failed: {error}", file=sys.stderr)
        if log_path.exists():
            print(f"The server's log: {log_path}", file=sys.stderr)
        else:
            log_path.parent.rmdir()
        return 1
    except KeyboardInterrupt:
        shutil.rmtree(log_path.parent)
        console.print("\nStopped; nothing is left running.")
        return 130
    shutil.rmtree(log_path.parent)
    console.print(
        "Done; nothing is left running. `make serve` or `hiscore serve` starts a server that keeps running."
    )
    return 0


def rank_reviews(console: Console, client: ScoreClient) -> None:
    """Rank reviews by one label against another, and compare with one call per review."""
    items = [f"{review}\nSentiment:" for review in REVIEWS]
    labels = [" positive", " negative"]
    # Warm up: the first call of a server is slower than all later ones.
    client.score(SENTIMENT_QUERY, items, labels=labels, apply_softmax=True)

    started = time.perf_counter()
    result = client.score(SENTIMENT_QUERY, items, labels=labels, apply_softmax=True)
    together = time.perf_counter() - started
    started = time.perf_counter()
    single = [
        client.score(SENTIMENT_QUERY, [item], labels=labels, apply_softmax=True).scores[0] for item in items
    ]
    one_by_one = time.perf_counter() - started

    table = Table("review", title="Is the review positive or negative?", title_justify="left")
    for label in labels:
        table.add_column(label.strip(), justify="right")
    table.add_column("", width=12)
    for index in np.argsort(-result.scores[:, 0]):
        positive, negative = result.scores[index]
        table.add_row(REVIEWS[index], f"{positive:.3f}", f"{negative:.3f}", "█" * round(12 * positive))
    console.print(table)
    console.print(
        "A score is the probability of the label as the next token, relative to the other label.\n"
        f"{len(items)} items, {result.usage.prompt_tokens} tokens, one call: {together * 1000:.0f} ms. "
        f"One call per item: {one_by_one * 1000:.0f} ms.\n"
        f"Largest difference between the two: {np.abs(result.scores - single).max():.1e}.\n"
    )


def score_capitals(console: Console, client: ScoreClient) -> None:
    """Show the probabilities of several labels over the whole vocabulary."""
    labels = list(CAPITALS.values())
    started = time.perf_counter()
    result = client.score(CAPITALS_QUERY, [f"{country} is" for country in CAPITALS], labels=labels)
    seconds = time.perf_counter() - started

    table = Table("the capital of", title="What is the next token?", title_justify="left")
    for label in labels:
        table.add_column(label.strip(), justify="right")
    for country, row in zip(CAPITALS, result.scores, strict=True):
        best = row.max()
        table.add_row(
            f"{country} is", *(f"[bold]{score:.3f}[/]" if score == best else f"{score:.3f}" for score in row)
        )
    console.print(table)
    console.print(
        "Without apply_softmax, a score is the probability over the whole vocabulary:\n"
        f"the rest of each row's 1.0 went to other tokens. {result.scores.size} scores, one call: "
        f"{seconds * 1000:.0f} ms.\n"
    )


def chat(console: Console, url: str) -> None:
    """Ask a question over the HTTP API, as OpenAI's clients do, and print the answer as its tokens arrive."""
    console.print(f"A chat, streamed from {url}/v1/chat/completions:", style="italic")
    console.print(QUESTION, markup=False)
    body = {
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_completion_tokens": 48,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    started = time.perf_counter()
    first, tokens, reason = 0.0, 0, ""
    with urllib.request.urlopen(request) as events:
        for line in events:
            if not line.strip() or line.strip() == b"data: [DONE]":
                continue
            event = json.loads(line.removeprefix(b"data: "))
            for choice in event["choices"]:
                text, reason = choice["delta"].get("content", ""), choice["finish_reason"] or reason
                first = first or (time.perf_counter() - started if text else 0.0)
                console.print(text, end="", markup=False, soft_wrap=True)
            if usage := event["usage"]:
                tokens = usage["completion_tokens"]
    seconds = time.perf_counter() - started
    console.print(
        f"\n{tokens} tokens in {seconds:.1f} s, the first after {first * 1000:.0f} ms; "
        f"finish reason '{reason}'.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
