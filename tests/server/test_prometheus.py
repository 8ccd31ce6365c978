"""A real Prometheus with our config reads a real server, and every query of ours has an answer."""

import json
import math
import shutil
import subprocess
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore.launcher.health import HealthServer
from hiscore.launcher.ports import free_ports
from hiscore.launcher.watchdog import Watchdog
from hiscore_client import ScoreClient
from tests.server.api import api_of, call
from tests.server.conftest import StartServer
from tests.support.deployment import (
    DOCKER,
    GPU_METRIC,
    dashboard_queries,
    metrics_of,
    required,
    rules,
    scaling_queries,
)
from tests.support.timeouts import TIMEOUT_S, wait_until

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

SERVICE = "server:8002"
LAUNCHER = "server:8003"
API = "server:8080"
# Rates need two scrapes, a second apart, and calls between them.
EVERYTHING = "score,tokenizer,scorer,decode"


@pytest.fixture(scope="module")
def whole(start_server: StartServer, tiny_lm: Path) -> Server:
    """A server with every model, decode attending to a part only, so that all of its metrics move."""
    return start_server(
        tiny_lm,
        models=EVERYTHING,
        query_cache_bytes=2**24,
        canary_seconds=0,
        selector="quest",
        sparse_top_k=64,
        device_buffer_size=128,
        max_streams=2,
    )


@pytest.fixture(scope="module")
def launcher_metrics(whole: Server) -> Iterator[str]:
    """What a launcher of this server would say of it."""
    health = HealthServer("127.0.0.1", 0, Watchdog(whole, idle=lambda: None))
    yield f"http://127.0.0.1:{health.port}/metrics"
    health.close()


@pytest.fixture(scope="module")
def api(whole: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The HTTP API in front of this server."""
    with api_of(whole, tmp_path_factory.mktemp("api") / "log", labels=("a", "b")) as running:
        yield running


@pytest.fixture(scope="module")
def prometheus(
    whole: Server, launcher_metrics: str, api: Api, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The address of a Prometheus that reads the server."""
    program = required("prometheus", "Debian and Ubuntu have a package of that name")
    directory = tmp_path_factory.mktemp("prometheus")
    config = (DOCKER / "prometheus/prometheus.yml").read_text()
    for name, url in (
        (SERVICE, whole.metrics_url),
        (LAUNCHER, launcher_metrics),
        (API, f"{api.url}/metrics"),
    ):
        assert config.count(name) == 1
        config = config.replace(name, url.split("/")[2])
    # Rates need two scrapes: five seconds are long for a test.
    assert config.count("scrape_interval: 5s") == 1
    config = config.replace("scrape_interval: 5s", "scrape_interval: 1s")
    (directory / "prometheus.yml").write_text(config)
    shutil.copy(DOCKER / "prometheus/rules.yml", directory)
    address = f"127.0.0.1:{free_ports('127.0.0.1', 1)[0]}"
    command = [
        program,
        f"--config.file={directory}/prometheus.yml",
        f"--storage.tsdb.path={directory}/data",
        f"--web.listen-address={address}",
    ]
    with (directory / "log").open("wb") as log, subprocess.Popen(command, stderr=log) as process:
        try:
            wait_until_ready(address, process, directory / "log")
            yield address
        finally:
            process.terminate()


def wait_until_ready(address: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    def is_ready() -> bool:
        assert process.poll() is None, log.read_text()
        with suppress(OSError):
            urllib.request.urlopen(f"http://{address}/-/ready", timeout=TIMEOUT_S).close()
            return True
        return False

    wait_until(is_ready, log.read_text)


def ask(address: str, query: str) -> list[float]:
    """The values that a query gives now; an error of Prometheus fails the test."""
    url = f"http://{address}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
    with urllib.request.urlopen(url, timeout=TIMEOUT_S) as response:
        answer = json.load(response)
    assert answer["status"] == "success", answer
    assert answer["data"]["resultType"] == "vector", query
    return [float(series["value"][1]) for series in answer["data"]["result"]]


@pytest.fixture(scope="module")
def exported(whole: Server, launcher_metrics: str, api: Api) -> set[str]:
    """The names of the metrics that a server, its launcher and its HTTP API have."""
    use_api(api)
    names = {"up"}
    for url in (whole.metrics_url, launcher_metrics, f"{api.url}/metrics"):
        with urllib.request.urlopen(url) as response:
            lines = response.read().decode().splitlines()
        types = [line.split()[2:] for line in lines if line.startswith("# TYPE")]
        # Of the API's histograms, as prometheus_client writes them; ours of the models are counters.
        names |= {f"{name}_bucket" if kind == "histogram" else name for name, kind in types}
    return names


def use_api(api: Api) -> None:
    """A little of everything that moves a metric of the HTTP API."""
    assert call(api, "/rerank", {"query": "a", "texts": []}).status == 400
    assert call(api, "/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": True}).status == 200


def work(server: Server, api: Api | None = None) -> None:
    """A little of everything that moves a metric; the same query twice, so that its cache is used."""
    if api:
        use_api(api)
    with ScoreClient(server.grpc_url) as client:
        for _ in range(2):
            client.score("a query that is longer than a page " * 8, ["one", "two"], label_token_ids=[1, 2])
        assert len([*client.generate("once upon a time " * 20, max_tokens=8, ignore_eos=True)]) > 0


def wait_for(
    address: str, server: Server, query: str, is_right: Callable[[float], bool], api: Api | None = None
) -> None:
    """Give a server work until a query has such a value."""

    def answers() -> bool:
        if any(map(is_right, ask(address, query))):
            return True
        work(server, api)
        time.sleep(0.5)
        return False

    wait_until(answers, lambda: query)


def test_every_query_answers(prometheus: str, whole: Server, api: Api) -> None:
    queries = {query for _, query in (*dashboard_queries(), *scaling_queries())}
    waiting = sorted(query for query in queries if not GPU_METRIC.search(query))
    assert len(waiting) > 20
    for query in waiting:
        wait_for(prometheus, whole, query, math.isfinite, api)


def test_each_part_of_a_text_call_tells_its_time(prometheus: str, whole: Server) -> None:
    for model in ("tokenizer", "scorer"):
        query = f'hiscore_launch_seconds_total{{model="{model}"}}'
        wait_for(prometheus, whole, query, lambda seconds: seconds > 0)


DOORS: dict[str, Any] = {
    "/v1/score": {"query": "a", "items": ["b"], "label_token_ids": [1]},
    "/v1/rerank": {"query": "a", "documents": ["b"]},
    "/v1/ranking": {"query": {"text": "a"}, "passages": [{"text": "b"}]},
    "/v1/decisions": {
        "model": "any",
        "input": "a",
        "questions": [{"type": "predicate", "instructions": "b"}],
    },
    "/v1/systemone": {"state": "a", "questions": {"b": {"type": "noul", "instructions": "c"}}},
}


def seconds_in(server: Server, metric: str) -> float:
    with urllib.request.urlopen(server.metrics_url) as response:
        lines = response.read().decode().splitlines()
    return sum(
        float(line.split()[-1])
        for line in lines
        if line.startswith(f"{metric}{{") and 'model="scorer"' in line
    )


@pytest.mark.parametrize("door", [*DOORS, "text", "ids"])
def test_calls_through_every_door_count_for_scaling(whole: Server, api: Api, door: str) -> None:
    (scaled,) = (query for where, query in scaling_queries() if "scoring" in where)
    assert 'model="scorer"' in scaled
    (metric,) = metrics_of(scaled)
    before = seconds_in(whole, metric)
    with ScoreClient(whole.grpc_url) as client:
        if door in DOORS:
            assert call(api, door, DOORS[door]).status == 200
        elif door == "text":
            client.score("a", ["b"], label_token_ids=[1])
        else:
            client.score_ids([1], [[2]], [1])
    wait_until(lambda: seconds_in(whole, metric) > before, lambda: door)


def test_no_alert_cries_over_a_server_that_works(prometheus: str) -> None:
    assert {name: ask(prometheus, expression) for name, expression in rules()} == {
        name: [] for name, _ in rules()
    }


def test_control_an_alert_cries(prometheus: str) -> None:
    down = dict(rules())["HiscoreDown"]
    assert ask(prometheus, down.replace("== 0", "== 1")) != []


@pytest.mark.parametrize(
    ("alert", "status"), [("HiscoreApiFails", "50[0-2]"), ("HiscoreApiTurnsAway", "429|503|504")]
)
def test_control_an_alert_of_the_api_cries(
    prometheus: str, whole: Server, api: Api, alert: str, status: str
) -> None:
    expression = dict(rules())[alert]
    assert expression.count(status) == 1
    wait_for(prometheus, whole, expression.replace(status, "400"), lambda share: share > 0, api)


@pytest.mark.parametrize("source", [dashboard_queries, rules, scaling_queries])
def test_every_metric_is_exported(source: object, exported: set[str]) -> None:
    assert callable(source)
    named = {metric for _, query in source() for metric in metrics_of(query)}
    gpu = {metric for metric in named if GPU_METRIC.fullmatch(metric)}
    assert named
    assert named - gpu <= exported


def test_every_counter_of_ours_is_on_a_dashboard(exported: set[str]) -> None:
    shown = {metric for _, query in dashboard_queries() for metric in metrics_of(query)}
    ours = {metric for metric in exported if metric.startswith("hiscore_")}
    assert ours <= shown
