"""SGLang's side of the comparison of decisions, with a stand-in for its engine."""

import asyncio
import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from perf.scoring import decision_sglang

PROMPTS = {
    "warm_up": 1,
    "labels": [5, 6],
    "calls": {
        "1": [{"query": [1, 2], "items": [[3]]}] * 3,
        "2": [{"query": [1, 2], "items": [[3], [9, 9]]}] * 3,
    },
    "scores": {"1": [[0.3, 0.7]], "2": [[0.3, 0.7], [0.9, 0.1]]},
}


class Engine:
    """Answers with a tenth of an item's first id."""

    made: ClassVar[list[dict[str, Any]]] = []
    asked: ClassVar[list[dict[str, Any]]] = []

    def __init__(self, **options: Any) -> None:
        self.made.append(options)
        self.loop = asyncio.new_event_loop()

    async def async_score(self, **call: Any) -> Any:
        self.asked.append(call)
        return SimpleNamespace(scores=[[item[0] / 10, 1 - item[0] / 10] for item in call["items"]])

    def shutdown(self) -> None:
        self.loop.close()


def test_every_call_is_asked_as_it_stands_and_checked_against_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "sglang", SimpleNamespace(Engine=Engine, __version__="0"))  # type: ignore[arg-type]
    (tmp_path / "prompts.json").write_text(json.dumps(PROMPTS))
    ours = {count: {"http": {"questions_a_second": 1.0}} for count in ("1", "2")}
    (tmp_path / "ours.json").write_text(json.dumps({"questions": ours}))
    given = ["--prompts", tmp_path / "prompts.json", "--checkpoint", "C", "--out", tmp_path]
    more = ["--ours", tmp_path / "ours.json", "--tag", "T", 'schedule_policy="lpm"']
    monkeypatch.setattr(sys, "argv", ["script", *map(str, [*given, *more])])
    assert decision_sglang.main() == 0
    assert Engine.made[-1]["model_path"] == "C"
    assert Engine.made[-1]["schedule_policy"] == "lpm"
    expected = [call for calls in PROMPTS["calls"].values() for call in calls]  # type: ignore[attr-defined]
    assert [{name: call[name] for name in ("query", "items")} for call in Engine.asked] == expected
    assert all(call["label_token_ids"] == [5, 6] and call["apply_softmax"] for call in Engine.asked)
    found = json.loads((tmp_path / "decision_sglang-T.json").read_text())["questions"]
    assert found["2"]["apart"] == 0
    # The control: answers to each other's questions are far off.
    assert found["2"]["apart_of_others"] == pytest.approx(0.6)
    assert found["1"]["sglang"]["questions_a_second"] > 0
    assert "hiscore beside SGLang: http" in capsys.readouterr().out
