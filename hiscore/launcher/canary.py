"""Canaries: small real calls that show whether each model still answers.

Triton 2.51 reports a model as ready even when its process is dead. A dead process can be seen from outside; a
process that hangs, or a device that no longer computes, shows only when a call gets no answer.

A busy model may be slow to answer, so it gets no canary: if its counters have risen since the last check, it
works. Canaries therefore cost a loaded server nothing, and load is never mistaken for a fault. Nor is a forward
that takes minutes: each of its layers counts (`hiscore.server.progress`).
"""

import http.client
import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hiscore.models.family import is_classifier
from hiscore.models.stored_config import stored_config
from hiscore.settings import CANARY_ID

log = logging.getLogger(__name__)

# What Triton answers for a model whose process sends no signs of life: there is nothing to wait for.
NOT_HEALTHY = re.compile(r"Stub process.* is not healthy")
# A canary is unanswered after so many times the interval between two: 60 s by default, more than a batch takes on
# a GPU or a layer on a CPU.
CANARY_PATIENCE = 2
# Unanswered canaries in a row that count as a fault: one may be lost to a machine that stood still for a moment.
CANARY_MISSES = 3


@dataclass(frozen=True)
class Probe:
    """The canary of a model: good answers contain `expected`, and `counters` rise when the model works."""

    model: str
    method: str
    body: Mapping[str, Any]
    expected: str
    counters: tuple[str, ...]

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/{self.method}"

    def accepts(self, status: int, text: str) -> bool:
        """Tell whether an answer is good. In a stream, an error may follow the expected string."""
        return status == 200 and self.expected in text and '"error"' not in text

    def work(self, metrics: str) -> float:
        """Sum up the model's counters over its devices, from the text of Triton's metrics page."""
        names = "|".join(self.counters)
        line = rf'^(?:{names})\{{(?:[^}}]*,)?model="{self.model}"[^}}]*\}} (\S+)$'
        return sum(map(float, re.findall(line, metrics, re.MULTILINE)))


def probes(models: Sequence[str], checkpoint: Path) -> list[Probe]:
    """A probe for each model that has its own process; the ensemble has none."""
    classifies = is_classifier(stored_config(checkpoint).get("architectures"))
    labels = [] if classifies else [0]
    by_text = _infer(query=["a"], items=["b"], **({} if classifies else {"label_token_ids": labels}))
    # No query, one item of one token: delimiter, token, delimiter.
    by_ids = _infer(input_ids=[0, 0, 0], delimiter_indices=[0, 2], label_token_ids=labels)
    prompt = {"input_ids": [0], "max_tokens": 1}
    # The prefill of a long prompt can take minutes before the first step.
    steps = ("hiscore_decode_prompt_tokens_total", "hiscore_decode_steps_total")
    batches = ("hiscore_batches_total",)
    every = [
        Probe("tokenizer", "infer", by_text, '"input_ids"', ("hiscore_tokenizer_batches_total",)),
        Probe("scorer", "infer", by_ids, '"usage"', batches),
        Probe("decode", "generate_stream", prompt, '"finish_reason"', steps),
    ]
    return [probe for probe in every if probe.model in models]


def _infer(**tensors: list[Any]) -> dict[str, Any]:
    return {
        "id": CANARY_ID,
        "inputs": [
            {
                "name": name,
                "shape": [1, len(values)],
                "datatype": "BYTES" if name in ("query", "items") else "INT32",
                "data": values,
            }
            for name, values in tensors.items()
        ],
    }


class HttpTransport:
    """Triton's HTTP and metrics ports, as ``host:port`` each; an answer is awaited for `timeout_s`."""

    def __init__(self, http_address: str, metrics_address: str, timeout_s: float) -> None:
        self._http_address, self._metrics_address = http_address, metrics_address
        self._timeout_s = timeout_s

    def call(self, path: str, body: str) -> tuple[int, str]:
        """POST a JSON body: status and text; status 0 and the error if no answer came."""
        try:
            return self._request(self._http_address, "POST", path, body)
        except (OSError, http.client.HTTPException) as error:
            return 0, repr(error)

    def metrics(self) -> str | None:
        """Read the metrics page; None if that fails."""
        try:
            status, text = self._request(self._metrics_address, "GET", "/metrics", None)
        except (OSError, http.client.HTTPException):
            return None
        return text if status == 200 else None

    def _request(self, address: str, method: str, path: str, body: str | None) -> tuple[int, str]:
        connection = http.client.HTTPConnection(address, timeout=self._timeout_s)
        try:
            connection.request(
                method, path, body, {"Content-Type": "application/json", "Connection": "close"}
            )
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")
        finally:
            connection.close()


class Canary:
    """Watches one model, one check at a time.

    `misses` counts the canaries in a row without an answer; `dead` says that Triton has given the model's
    process up.
    """

    def __init__(
        self, probe: Probe, transport: HttpTransport, progress: Callable[[], int] = lambda: 0
    ) -> None:
        """Watch a model, whose `progress` is a counter that rises within a batch, too."""
        self.model, self.misses, self.dead = probe.model, 0, False
        self._probe, self._transport, self._progress = probe, transport, progress
        self._work_seen: float | None = None

    def check(self) -> str:
        """Send a canary unless the model has worked since the last check; return a bad answer, else ""."""
        work, complaint = self._work(), ""
        if work is None or self._work_seen is None or work == self._work_seen:
            status, text = self._transport.call(self._probe.path, json.dumps(self._probe.body))
            if not self._probe.accepts(status, text):
                complaint = f"{status} {text}".strip()
            # The canary has raised the counters itself, answered or not: that is not work at the next check.
            work = self._work()
        self.misses = self.misses + 1 if complaint else 0
        self.dead = bool(NOT_HEALTHY.search(complaint))
        self._work_seen = work
        return complaint

    def _work(self) -> float | None:
        metrics = self._transport.metrics()
        return None if metrics is None else self._probe.work(metrics) + self._progress()


class Canaries:
    """Checks every model every `interval_s` seconds, each in its own thread.

    `max_misses` unanswered canaries in a row make a model silent.
    """

    def __init__(self, canaries: Sequence[Canary], interval_s: float, max_misses: int) -> None:
        self._canaries, self._interval_s, self._max_misses = canaries, interval_s, max_misses
        self._closed = threading.Event()
        for canary in canaries:
            name = f"hiscore-canary-{canary.model}"
            threading.Thread(target=self._watch, args=(canary,), name=name, daemon=True).start()

    @property
    def silent(self) -> list[str]:
        """Models that count as hanging."""
        return [canary.model for canary in self._canaries if canary.dead or canary.misses >= self._max_misses]

    @property
    def doubtful(self) -> list[str]:
        """Models that missed their last canary."""
        return [canary.model for canary in self._canaries if canary.misses]

    def close(self) -> None:
        """Send no more canaries; answers still awaited are ignored."""
        self._closed.set()

    def _watch(self, canary: Canary) -> None:
        while not self._closed.wait(self._interval_s):
            complaint = canary.check()
            if complaint and not self._closed.is_set():
                log.warning("model %s has missed a canary: %s", canary.model, complaint)
