"""The deployment files and their queries."""

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
KUBERNETES = ROOT / "kubernetes"
DASHBOARDS = sorted((DOCKER / "grafana/dashboards").glob("*.json"))

# Triton and hiscore name their metrics like this; functions and labels of PromQL do not look so.
METRIC = re.compile(r"\b(?:hiscore|nv)_\w+|\bup\b")
# Triton has these on a machine with a GPU alone.
GPU_METRIC = re.compile(r"\bnv_gpu_\w+")


def required(program: str, hint: str) -> str:
    """The path of a program that a test runs; without it the test is skipped, and says what to install."""
    found = shutil.which(
        program, path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    )
    if found:
        return found
    return pytest.skip(f"{program} is not installed: {hint}")


def documents(path: Path) -> list[dict[str, Any]]:
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def dashboard_queries() -> Iterator[tuple[str, str]]:
    """Where each query of each dashboard is, and the query as Prometheus gets it when all servers are shown."""
    for path in DASHBOARDS:
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel["targets"]:
                query = target["expr"].replace("$instance", ".*").replace("$__rate_interval", "30s")
                yield f"{path.stem}: {panel['title']} {target['refId']}", query


def rules() -> Iterator[tuple[str, str]]:
    for group in documents(DOCKER / "prometheus/rules.yml")[0]["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]


def scaling_queries() -> Iterator[tuple[str, str]]:
    """Each query that scales a deployment: where it is, and the query for compose's single job."""
    for path in sorted(KUBERNETES.rglob("*.yaml")):
        for document in documents(path):
            if document.get("kind") == "ScaledObject":
                for trigger in document["spec"]["triggers"]:
                    query = re.sub(r'job=~"[^"]+"', 'job="hiscore"', trigger["metadata"]["query"])
                    yield str(path.relative_to(ROOT)), query


def metrics_of(query: str) -> set[str]:
    return set(METRIC.findall(query))
