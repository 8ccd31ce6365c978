"""``make demo``: start a server with a small real model, score items and stream a generation through the SDK.

The server is always stopped at the end. Exit code: 0 on success, 130 after Ctrl-C, otherwise 1.
"""

import logging
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from rich.console import Console
from rich.table import Table

from hiscore.checkpoint import CheckpointError, resolve
from hiscore.launcher import LaunchError, Server
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
# The default model's chat template, with one user turn.
CHAT_TEMPLATE = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def main() -> int:
    """Run the demo and return its exit code."""
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    console = Console(highlight=False)
    log_path = Path(tempfile.mkdtemp(prefix="hiscore-demo-")) / "server.log"
    try:
        resolve(DEFAULT_MODEL)
        settings = ServeSettings(model=DEFAULT_MODEL, models="", http_port=0, grpc_port=0, metrics_port=0)
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
                    stream_answer(console, client)
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
    console.print("Done; nothing is left running. `make serve` starts a server that keeps running.")
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


def stream_answer(console: Console, client: ScoreClient) -> None:
    """Print the answer to a question as its tokens arrive."""
    console.print("A generation, streamed:", style="italic")
    console.print(QUESTION, markup=False)
    started = time.perf_counter()
    first, tokens, reason = 0.0, 0, ""
    for chunk in client.generate(CHAT_TEMPLATE.format(QUESTION), max_tokens=48):
        first = first or time.perf_counter() - started
        tokens, reason = tokens + len(chunk.token_ids), chunk.finish_reason
        console.print(chunk.text, end="", markup=False, soft_wrap=True)
    seconds = time.perf_counter() - started
    console.print(
        f"\n{tokens} tokens in {seconds:.1f} s, the first after {first * 1000:.0f} ms; "
        f"finish reason '{reason}'.\n"
    )


if __name__ == "__main__":
    sys.exit(main())
