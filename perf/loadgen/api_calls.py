"""Calls made in two ways: over HTTP to the API, and over gRPC with the prompts that it makes of the same texts."""

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hiscore.prompts.decisions import DecisionPrompter, Message, Option, Question
from hiscore.prompts.rerank import RerankPrompts
from hiscore.prompts.token_limits import TokenLimits
from hiscore.settings import Limits
from hiscore_client import ScoreClient
from perf.loadgen.http_connection import HttpConnection
from perf.loadgen.text_calls import WORDS

Once = Callable[[], None]
LABELS = [5, 6]


@dataclass(frozen=True)
class Ids:
    """Arguments of `ScoreClient.score_ids`, but for the options."""

    query: list[int]
    items: list[list[int]]
    labels: list[int]
    label_counts: list[int] | None = None


@dataclass(frozen=True)
class Call:
    """One call in both ways.

    Attributes:
        units: Items, documents or questions.
    """

    name: str
    path: str
    body: dict[str, Any]
    ids: Ids
    units: int


def score_call(rng: np.random.Generator, query: int, items: int, tokens: int, vocabulary: int) -> Call:
    """Items by ids."""
    ids = Ids(
        rng.integers(10, vocabulary, query).tolist(),
        [rng.integers(10, vocabulary, tokens).tolist() for _ in range(items)],
        LABELS,
    )
    body = {"query": ids.query, "items": ids.items, "label_token_ids": ids.labels, "apply_softmax": True}
    return Call(f"{items} items by ids", "/v1/score", body, ids, items)


def rerank_call(
    rng: np.random.Generator, documents: int, words: int, checkpoint: Path, labels: Sequence[str] = ()
) -> Call:
    """Documents by text; labels: in place of the template's."""
    query, texts = _words(rng, 8), [_words(rng, words) for _ in range(documents)]
    maker = RerankPrompts(checkpoint, labels=labels)
    prompts = maker.ids([query] * documents, texts)
    ids = Ids(prompts.query, prompts.items, list(maker.label_ids))
    body = {"query": query, "documents": texts}
    return Call(f"rerank of {documents} documents", "/v1/rerank", body, ids, documents)


def decision_call(
    rng: np.random.Generator, state: int, questions: int, words: int, checkpoint: Path, context: int
) -> Call:
    """Questions of yes and no about one state."""
    text, asked = _words(rng, state), [_words(rng, words) for _ in range(questions)]
    typed = [Question("predicate", each, [Option("Yes"), Option("No")]) for each in asked]
    made = DecisionPrompter(checkpoint, TokenLimits(context, Limits().max_call_tokens)).ids(
        [Message("user", text)], typed
    )
    labels = [token for own in made.labels for ids in own.ids for token in ids]
    ids = Ids(made.prompts.query, made.prompts.items, labels, [len(own.ids) for own in made.labels])
    body = {
        "model": "any",
        "input": text,
        "questions": [{"type": "predicate", "instructions": each} for each in asked],
    }
    return Call(f"decision of {questions} questions", "/v1/decisions", body, ids, questions)


def over_http(url: str, call: Call) -> Once:
    """Makes the call over one connection; like the other way, from lists to numbers."""
    connection = HttpConnection(url)

    def once() -> None:
        connection.post(call.path, call.body)

    return once


def over_grpc(url: str, call: Call) -> Once:
    """Makes the call over one connection."""
    client, ids = ScoreClient(url), call.ids

    def once() -> None:
        client.score_ids(ids.query, ids.items, ids.labels, label_counts=ids.label_counts, apply_softmax=True)

    return once


WAYS: dict[str, Callable[[str, Call], Once]] = {"grpc": over_grpc, "http": over_http}


def calls_a_second(way: str, url: str, call: Call, callers: Sequence[int], seconds: float) -> float:
    """Calls that callers without a pause get answered.

    Args:
        callers: Of each process.
    """
    with ProcessPoolExecutor(len(callers), get_context("spawn")) as pool:
        start = time.time() + 5  # by then all processes have loaded
        counts = [pool.submit(_keep_calling, way, url, call, each, start, seconds) for each in callers]
        return sum(each.result() for each in counts) / seconds


def _keep_calling(way: str, url: str, call: Call, callers: int, start: float, seconds: float) -> int:
    done = [0] * callers

    def run(index: int) -> None:
        once = WAYS[way](url, call)
        once()
        time.sleep(max(0.0, start - time.time()))
        while time.time() < start + seconds:
            once()
            done[index] += 1

    threads = [threading.Thread(target=run, args=(index,)) for index in range(callers)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return sum(done)


def _words(rng: np.random.Generator, count: int) -> str:
    return " ".join(rng.choice(WORDS, count))
