"""Canaries: small real calls that tell whether each model still answers.

Triton 2.51 says that a model is ready whatever has become of its process. A process that has died can be seen from
outside; one that hangs, or a device that no longer computes, only by asking for an answer.

A busy model may take long to answer, and is not asked: whatever it has counted since the last look shows that it
works. So a canary costs a loaded server nothing, and no load is mistaken for a fault.
"""

import http.client
import json
import logging
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hiscore.settings import CANARY_ID

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Probe:
    """A model's canary: the path and JSON body of its request, and a word of a good answer.

    counters: those of the model's that rise with its work.
    """

    path: str
    body: Mapping[str, Any]
    answer: str
    counters: tuple[str, ...]


def probes(models: Sequence[str], checkpoint: Path) -> dict[str, Probe]:
    """A probe for each model that has a process of its own; the ensemble has none."""
    architectures = json.loads((checkpoint / "config.json").read_text()).get("architectures") or [""]
    is_classifier = architectures[0].endswith("ForSequenceClassification")
    labels = [] if is_classifier else [0]
    every = {
        "tokenizer": Probe(
            "/v2/models/tokenizer/infer",
            _infer(query=["a"], items=["b"], **({} if is_classifier else {"label_token_ids": labels})),
            '"input_ids"',
            ("hiscore_tokenizer_batches_total",),
        ),
        # No query, one item of one token: delimiter, token, delimiter.
        "scorer": Probe(
            "/v2/models/scorer/infer",
            _infer(input_ids=[0, 0, 0], delimiter_indices=[0, 2], label_token_ids=labels),
            '"scores"',
            ("hiscore_batches_total",),
        ),
        "decode": Probe(
            "/v2/models/decode/generate_stream",
            {"input_ids": [0], "max_tokens": 1},
            '"finish_reason"',
            # A long prompt is work for minutes, before its first token.
            ("hiscore_decode_prompt_tokens_total", "hiscore_decode_steps_total"),
        ),
    }
    return {model: every[model] for model in models if model in every}


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


class Canaries:
    """Asks every model in a thread of its own, every `interval_s` seconds that it has counted nothing.

    A model that has not answered well `misses` times in a row, within `timeout_s` seconds each, is silent.
    The addresses are ``host:port``.
    """

    def __init__(
        self,
        http_address: str,
        metrics_address: str,
        probes: Mapping[str, Probe],
        interval_s: float,
        timeout_s: float,
        misses: int,
    ) -> None:
        self._http_address, self._metrics_address = http_address, metrics_address
        self._interval_s, self._timeout_s, self._most = interval_s, timeout_s, misses
        self._missed = dict.fromkeys(probes, 0)
        self._closed = threading.Event()
        for model, probe in probes.items():
            name = f"hiscore-canary-{model}"
            threading.Thread(target=self._watch, args=(model, probe), name=name, daemon=True).start()

    @property
    def silent(self) -> list[str]:
        """Models that do not answer."""
        return [model for model, missed in self._missed.items() if missed >= self._most]

    @property
    def doubtful(self) -> list[str]:
        """Models that have not answered the last time they were asked."""
        return [model for model, missed in self._missed.items() if missed]

    def close(self) -> None:
        """Ask no more; an answer that is still awaited will not be looked at."""
        self._closed.set()

    def _watch(self, model: str, probe: Probe) -> None:
        seen: float | None = None
        while not self._closed.wait(self._interval_s):
            counted = self._counted(model, probe)
            if counted is not None and counted != seen and seen is not None:
                self._missed[model] = 0
            elif self._answers(model, probe):
                self._missed[model] = 0
                # What the canary itself has raised is no work.
                counted = self._counted(model, probe)
            else:
                self._missed[model] += 1
            seen = counted

    def _answers(self, model: str, probe: Probe) -> bool:
        try:
            status, text = self._request(self._http_address, "POST", probe.path, json.dumps(probe.body))
        except (OSError, http.client.HTTPException) as error:
            status, text = 0, repr(error)
        if status == 200 and probe.answer in text and '"error"' not in text:
            return True
        if not self._closed.is_set():
            log.warning("model %s has missed a canary: %s", model, f"{status} {text}".strip())
        return False

    def _counted(self, model: str, probe: Probe) -> float | None:
        """The sum of the model's counters over all its devices, or None if they cannot be read."""
        try:
            status, text = self._request(self._metrics_address, "GET", "/metrics", None)
        except (OSError, http.client.HTTPException):
            return None
        names = "|".join(probe.counters)
        line = re.compile(rf'^(?:{names})\{{(?:[^}}]*,)?model="{model}"[^}}]*\}} (\S+)$', re.MULTILINE)
        return sum(map(float, line.findall(text))) if status == 200 else None

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
