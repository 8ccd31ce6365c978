"""Requests made from the OpenAPI description, right and wrong, while another caller repeats one request."""

import json
import re
import threading
from collections import Counter
from typing import Any

import requests
import schemathesis
from exchange import GIVEN, answer
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode

URL, CANARY = GIVEN["url"], GIVEN["canary"]
ALLOWED = {200, 400, 404, 413, 415, 429}
LEAK = re.compile(r"Traceback|File \"|/(?:usr|home|tmp|dev|root|opt|proc|etc)/")
PATIENCE_S = 120
MAX_TOKENS = 4
EXAMPLES = settings(
    max_examples=GIVEN["examples"],
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)

seen: dict[str, Counter[int]] = {}
wrong: list[str] = []
done = threading.Event()
heard: list[Any] = []


def keep_calling() -> None:
    """The other caller, whose answers must never change."""
    while not done.wait(0.01):
        heard.append(
            requests.post(URL + CANARY["path"], json=CANARY["body"], timeout=PATIENCE_S).json()["scores"]
        )


def keep_short(case: Any) -> None:
    """Let no request generate more than a few tokens; what is wrong with its limits stays so."""
    body = case.body
    if not isinstance(body, dict) or not case.path.endswith("completions"):
        return
    names = ["max_tokens", *(["max_completion_tokens"] if "chat" in case.path else [])]
    for name in names:
        limit = body.get(name)
        if limit is None or (isinstance(limit, int) and limit > MAX_TOKENS):
            body[name] = MAX_TOKENS


def try_out(operation: Any, mode: GenerationMode) -> None:
    """Make requests of one kind to one route."""
    counts = seen.setdefault(operation.path, Counter())

    @EXAMPLES
    @given(case=operation.as_strategy(generation_mode=mode))
    def make_request(case: Any) -> None:
        keep_short(case)
        reply = case.call(base_url=URL, timeout=PATIENCE_S)
        counts[reply.status_code] += 1
        if reply.status_code not in ALLOWED or LEAK.search(reply.text):
            wrong.append(f"{case.path} {json.dumps(case.body, default=str)[:2000]}: {reply.text[:2000]}")

    make_request()


caller = threading.Thread(target=keep_calling)
caller.start()
try:
    for found in schemathesis.openapi.from_url(f"{URL}/openapi.json").get_all_operations():
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            try_out(found.ok(), mode)
finally:
    done.set()
    caller.join()
answer(seen=seen, wrong=wrong[:5], heard=heard)
