"""NVIDIA's perf_analyzer against `scorer`, and its numbers from its profile export.

In open loop it is given the very arrival times that our own generator uses. It measures from the moment it sends
and not from the intended one; since the arrivals are known, the export gives both.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from perf.calls import Ids
from perf.load import Sample

SCRIPT = Path(__file__).with_name("perf-analyzer")


class Analyzer:
    """perf_analyzer with data files in a temporary directory; its output is added to `log`."""

    def __init__(self, url: str, log: Path) -> None:
        self._command = os.environ.get("PERF_ANALYZER") or str(SCRIPT)
        self._url = url
        self._log = log

    def closed_loop(self, concurrency: int, calls: Sequence[Ids]) -> list[Sample]:
        """Send each call once, so many at a time; an intended time is the time of sending."""
        requests = self._run(
            calls, ["--concurrency-range", str(concurrency)], len(calls), timeout_s=60 + len(calls)
        )
        return _samples(calls, requests, [request["timestamp"] / 1e9 for request in requests])

    def open_loop(self, calls: Sequence[Ids], arrivals: Sequence[float]) -> list[Sample]:
        """Send at these times (seconds from the start), answered or not."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            gaps = np.diff(arrivals, prepend=0.0)
            file.write("\n".join(str(max(1, round(1e6 * gap))) for gap in gaps))
            file.flush()
            options = ["--request-intervals", file.name, "--async", "--max-threads", "8"]
            requests = self._run(calls, options, len(arrivals), timeout_s=90 + arrivals[-1])
        requests.sort(key=lambda request: request["timestamp"])
        # The clock of the schedule is not in the export: whichever call was least late is taken as on time.
        offset = min(r["timestamp"] / 1e9 - due for r, due in zip(requests, arrivals, strict=True))
        return _samples(calls, requests, [due + offset for due in arrivals])

    def _run(
        self, calls: Sequence[Ids], options: Sequence[str], count: int, timeout_s: float
    ) -> list[dict[str, Any]]:
        with tempfile.TemporaryDirectory() as directory:
            data, export = Path(directory) / "data.json", Path(directory) / "export.json"
            data.write_text(json.dumps({"data": [call.entry() for call in calls]}))
            command = [
                self._command,
                "-m",
                "scorer",
                "-i",
                "grpc",
                "-u",
                self._url,
                "--input-data",
                str(data),
            ]
            command += ["--request-parameter", "apply_softmax:true:bool", "--percentile", "99"]
            command += ["--request-count", str(count), "--profile-export-file", str(export), *options]
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
            with self._log.open("a") as log:
                log.write(f"$ perf_analyzer {' '.join(command[1:])}\n{done.stdout}{done.stderr}\n")
            if done.returncode:
                raise RuntimeError(f"perf_analyzer ended with {done.returncode}: {done.stderr[-300:]}")
            (experiment,) = json.loads(export.read_text())["experiments"]
        return list(experiment["requests"])


def _samples(
    calls: Sequence[Ids], requests: Sequence[dict[str, Any]], intended: Sequence[float]
) -> list[Sample]:
    """The export's requests as samples; which of the calls each was is told by its ids."""
    messages = {tuple(call.tensors()["input_ids"].tolist()): index for index, call in enumerate(calls)}
    labels = len(calls[0].labels)
    samples = []
    for request, due in zip(requests, intended, strict=True):
        message = messages[tuple(request["request_inputs"]["input_ids"])]
        sample = Sample(message, due, request["timestamp"] / 1e9)
        if request["response_timestamps"]:
            outputs = request["response_outputs"][-1]
            sample.done = request["response_timestamps"][-1] / 1e9
            sample.scores = np.array(outputs["scores"], np.float32).reshape(-1, labels)
            sample.cached = outputs["usage"][1]
        else:
            sample.error = "no answer"
        samples.append(sample)
    return samples
