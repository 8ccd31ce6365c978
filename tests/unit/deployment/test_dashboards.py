"""The dashboards as files; that their queries answer is tested with a running server."""

import json
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from hiscore.decoding.engine.stats import COUNTERS, GAUGES
from tests.support.deployment import (
    DASHBOARDS,
    DOCKER,
    KUBERNETES,
    METRIC,
    ROOT,
    dashboard_queries,
    documents,
    metrics_of,
)


def load(path: Path) -> dict[str, Any]:
    board: dict[str, Any] = json.loads(path.read_text())
    return board


def overlap(one: dict[str, int], other: dict[str, int]) -> bool:
    """Whether two places of Grafana's grid share a cell."""
    return all(
        one[start] < other[start] + other[size] and other[start] < one[start] + one[size]
        for start, size in (("x", "w"), ("y", "h"))
    )


def test_there_are_dashboards_with_names_of_their_own() -> None:
    boards = [load(path) for path in DASHBOARDS]
    assert {path.stem: len(board["panels"]) for path, board in zip(DASHBOARDS, boards, strict=True)}[
        "overview"
    ] == 4
    assert len(boards) == 5
    for key in ("uid", "title"):
        assert len({board[key] for board in boards}) == len(boards)


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_panels_have_room_and_a_source(path: Path) -> None:
    board = load(path)
    panels = board["panels"]
    source = documents(DOCKER / "grafana/provisioning/datasources/prometheus.yaml")[0]["datasources"][0][
        "uid"
    ]
    assert len({panel["id"] for panel in panels}) == len(panels)
    places = [panel["gridPos"] for panel in panels]
    assert [pair for pair in combinations(places, 2) if overlap(*pair)] == []
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for panel in (*panels, *board["templating"]["list"]):
        assert panel["datasource"]["uid"] == source
    for target in (target for panel in panels for target in panel["targets"]):
        assert target["datasource"]["uid"] == source
        # Or the choice of servers would not apply.
        assert target["expr"].count('instance=~"$instance"') == len(METRIC.findall(target["expr"]))


def test_control_panels_that_overlap_are_noticed() -> None:
    place = {"x": 0, "y": 0, "w": 12, "h": 8}
    assert overlap(place, {**place, "x": 11})
    assert not overlap(place, {**place, "x": 12})


def test_every_metric_of_decode_is_shown() -> None:
    shown = {metric for _, query in dashboard_queries() for metric in metrics_of(query)}
    assert set(COUNTERS) | set(GAUGES) <= shown


def alerts() -> list[dict[str, Any]]:
    return [
        rule for group in documents(DOCKER / "prometheus/rules.yml")[0]["groups"] for rule in group["rules"]
    ]


def test_every_alert_has_a_severity_and_a_section_that_says_what_to_do() -> None:
    headings = re.findall(r"^## (\w+)$", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    assert headings == [alert["alert"] for alert in alerts()]
    for alert in alerts():
        assert alert["labels"]["severity"] in ("critical", "warning")
        assert alert["annotations"]["summary"]
        assert alert["annotations"]["runbook"] == f"docs/alerts.md#{alert['alert'].lower()}"


def test_refused_calls_raise_no_alert_of_failures() -> None:
    """Triton counts some of them as failures; our own count of INTERNAL alone tells whose fault it was."""
    (fails,) = (alert["expr"] for alert in alerts() if alert["alert"] == "HiscoreFails")
    assert fails.startswith('sum by (instance, model) (rate(hiscore_errors_total{reason="INTERNAL"}[5m]))')
    assert not any("nv_inference_request_failure" in alert["expr"] for alert in alerts())


def test_somebody_notices_when_nothing_is_scraped() -> None:
    assert any(alert["expr"].startswith("absent(up{") for alert in alerts())


def test_kubernetes_has_the_same_alerts() -> None:
    (rule,) = documents(KUBERNETES / "monitoring/prometheusrule.yaml")
    assert (rule["apiVersion"], rule["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    assert rule["spec"] == documents(DOCKER / "prometheus/rules.yml")[0]
