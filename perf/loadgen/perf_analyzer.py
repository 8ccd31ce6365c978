"""Runs NVIDIA's perf_analyzer and reads the requests of its profile export.

In open loop it gets arrival times drawn like those of our own generator. It measures from the actual send time;
since the intended times are known, latencies can be counted from both.
"""

import gzip
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perf.machine.facts import shown

SCRIPT = Path(__file__).parents[1] / "perf-analyzer"
Entry = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """A model and its requests."""

    model: str
    entries: Sequence[Entry]
    """Entries of the data file, sent in turn."""
    parameters: Sequence[str] = ()
    """Parameters of each request, as NAME:VALUE:TYPE."""
    streaming: bool = False
    """The model answers a request with many responses."""


class Exported(NamedTuple):
    """A request of the export and when it was due, in seconds of the clock of its (nanosecond) timestamps."""

    intended: float
    request: Mapping[str, Any]


class Analyzer:
    """Runs perf_analyzer against one server."""

    def __init__(self, url: str, log: Path, exports: Path | None = None) -> None:
        """Nothing runs yet.

        Args:
            log: What perf_analyzer prints is appended to this file.
            exports: Directory for the CSV report and the profile export (without tensors) of runs with a name.
        """
        self._command = os.environ.get("PERF_ANALYZER") or str(SCRIPT)
        self._url = url
        self._log = log
        self._exports = exports

    def closed_loop(self, name: str, target: Target, concurrency: int, count: int) -> list[Exported]:
        """Send `count` requests, `concurrency` at a time; each counts as due when it was sent."""
        options = ["--concurrency-range", str(concurrency)]
        requests = self._run(name, target, options, count, timeout_s=60 + count)
        return [Exported(request["timestamp"] / 1e9, request) for request in requests]

    def open_loop(self, name: str, target: Target, arrivals: Sequence[float]) -> list[Exported]:
        """Send at these times (seconds from the start), answered or not."""
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
            gaps = np.diff(arrivals, prepend=0.0)
            file.write("\n".join(str(max(1, round(1e6 * gap))) for gap in gaps))
            file.flush()
            options = ["--request-intervals", file.name, "--async", "--max-threads", "8"]
            requests = self._run(name, target, options, len(arrivals), timeout_s=90 + arrivals[-1])
        requests.sort(key=lambda request: request["timestamp"])
        # The export does not say when the schedule began: take the least late call as on time.
        offset = min(r["timestamp"] / 1e9 - due for r, due in zip(requests, arrivals, strict=True))
        return [Exported(due + offset, r) for due, r in zip(arrivals, requests, strict=True)]

    def _run(
        self, name: str, target: Target, options: Sequence[str], count: int, timeout_s: float
    ) -> list[Mapping[str, Any]]:
        with tempfile.TemporaryDirectory() as directory:
            data, export, table = (Path(directory) / name for name in ("data.json", "export.json", "csv"))
            data.write_text(json.dumps({"data": list(target.entries)}))
            command = [self._command, "-m", target.model, "-i", "grpc", "-u", self._url]
            command += ["--input-data", str(data), "--percentile", "99", "--request-count", str(count)]
            for parameter in target.parameters:
                command += ["--request-parameter", parameter]
            command += ["--profile-export-file", str(export), "-f", str(table), *options]
            command += ["--streaming"] if target.streaming else []
            done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
            with self._log.open("a") as log:
                log.write(f"$ perf_analyzer {shown(command[1:])}\n{done.stdout}{done.stderr}\n")
            if done.returncode:
                raise RuntimeError(f"perf_analyzer ended with {done.returncode}: {done.stderr[-300:]}")
            # Texts are exported with their 4-byte lengths in front, which need not be valid UTF-8.
            (experiment,) = json.loads(export.read_text(errors="replace"))["experiments"]
            if self._exports and name:
                self._exports.mkdir(parents=True, exist_ok=True)
                file = self._exports / re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
                file.with_suffix(".csv").write_bytes(table.read_bytes())
                # Without a modification time the same export gives the same bytes.
                bare = json.dumps({"name": name, "experiments": [without_tensors(experiment)]})
                file.with_suffix(".json.gz").write_bytes(gzip.compress(bare.encode(), mtime=0))
        return list(experiment["requests"])


def without_tensors(experiment: Mapping[str, Any]) -> dict[str, Any]:
    """An experiment of the export with the times of its requests only: tensors would be most of the file."""
    kept = ("timestamp", "response_timestamps")
    return {
        **experiment,
        "requests": [{key: request[key] for key in kept} for request in experiment["requests"]],
    }
