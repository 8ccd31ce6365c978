"""Requests made from the OpenAPI description and from good ones, while another caller repeats one request."""

import copy
import json
import re
import threading
from collections import Counter
from typing import Any

import requests
import schemathesis
from exchange import GIVEN, answer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode

URL, CANARY = GIVEN["url"], GIVEN["canary"]
ALLOWED = {200, 400, 404, 413, 415, 429}
LEAK = re.compile(r"Traceback|File \"|/(?:usr|home|tmp|dev|root|opt|proc|etc)/")
TIMEOUT_S = 120
MAX_TOKENS = 4
EXAMPLES = settings(
    max_examples=GIVEN["examples"],
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TELLING = ["", [], {}, -1, 0, 2**31, 2**63, 1e308, True, None, "\0", "<|im_end|>", "a" * 10_000, [[]], "true"]
LEAVES = (
    st.sampled_from(TELLING) | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
ANYTHING = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=6,
)

seen: dict[str, Counter[int]] = {}
wrong: list[str] = []
done = threading.Event()
heard: list[Any] = []


def keep_calling() -> None:
    """The other caller, whose answers must never change."""
    while not done.wait(0.01):
        heard.append(
            requests.post(URL + CANARY["path"], json=CANARY["body"], timeout=TIMEOUT_S).json()["scores"]
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


def note(path: str, body: Any, reply: Any) -> None:
    """Count an answer, and keep it if it is wrong."""
    seen.setdefault(path, Counter())[reply.status_code] += 1
    if reply.status_code not in ALLOWED or LEAK.search(reply.text):
        wrong.append(f"{path} {json.dumps(body, default=str)[:2000]}: {reply.text[:2000]}")


def from_description(operation: Any, mode: GenerationMode) -> None:
    """Make requests that the description allows, or does not."""

    @EXAMPLES
    @given(case=operation.as_strategy(generation_mode=mode))
    def make_request(case: Any) -> None:
        note(case.path, case.body, case.call(base_url=URL, timeout=TIMEOUT_S))

    make_request()


def places(node: Any) -> list[tuple[Any, Any]]:
    keys = list(node) if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ()
    return [each for key in keys for each in ((node, key), *places(node[key]))]


def from_good_ones(path: str, bodies: list[Any]) -> None:
    for body in bodies:
        note(path, body, requests.post(URL + path, json=body, timeout=TIMEOUT_S))

    @EXAMPLES
    @given(data=st.data())
    def make_request(data: st.DataObject) -> None:
        body = copy.deepcopy(data.draw(st.sampled_from(bodies)))
        node, key = data.draw(st.sampled_from(places(body)))
        node[key] = data.draw(ANYTHING)
        note(path, body, requests.post(URL + path, json=body, timeout=TIMEOUT_S))

    make_request()


caller = threading.Thread(target=keep_calling)
caller.start()
try:
    for found in schemathesis.openapi.from_url(f"{URL}/openapi.json").get_all_operations():
        operation = found.ok()
        for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):
            from_description(operation, mode)
        if bodies := GIVEN["bodies"].get(operation.path):
            from_good_ones(operation.path, bodies)
finally:
    done.set()
    caller.join()
answer(seen=seen, wrong=wrong[:5], heard=heard)
