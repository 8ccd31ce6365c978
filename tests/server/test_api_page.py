"""The page at ``/``, in a real browser."""

import json
import os
import re
import shlex
import shutil
import subprocess

import pytest

from hiscore.launcher.api import Api
from tests.support.client_environment import ask, package_file

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.exhaustive
@pytest.mark.skipif(BROWSER is None, reason="no Chromium")
def test_every_tab_by_the_keyboard(api: Api) -> None:
    package_file("choreographer")
    pictures = os.environ.get("PICTURES", "")
    found = ask("browse", url=api.url, browser=BROWSER, pictures=pictures)
    assert found["tabs"] == ["Score", "Decide", "Rerank", "Chat", "Now"]
    assert found["complaints"] == []
    assert {re.match(r"\w+://[^/]+", url)[0] for url in found["called"]} == {api.url}  # type: ignore[index]

    for name, of in (("Score", "scores"), ("Decide", "answers"), ("Rerank", "results")):
        # Its command gives the answer that it shows.
        command = shlex.split(found[name]["command"].replace("\\\n", ""))
        answer = json.loads(subprocess.check_output(command))
        numbers = [float(row[-1]) for row in found[name]["rows"]]
        assert numbers == pytest.approx(probabilities(answer[of]), rel=5e-3), "three digits are shown"
        # A bar is as long as its number; one of less than two pixels is drawn with two.
        longest = max(
            bar / number for bar, number in zip(found[name]["bars"], numbers, strict=True) if bar > 2
        )
        for bar, number in zip(found[name]["bars"], numbers, strict=True):
            assert bar == pytest.approx(max(2, longest * number), rel=0.02, abs=0.5)
        assert "of them from the cache" in found[name]["text"]

    question, said = found["Chat"]["turns"]
    assert question in found["Chat"]["command"]
    assert "Paris" in said
    assert {row[0] for row in found["Now"]} >= {"/v1/score", "/v1/chat/completions"}
    assert found["light"] != found["dark"]
    assert "JSON list" in found["alert"]
    # Values beyond probabilities are shown without bars and without that name.
    assert "-2.50" in found["logits"]
    assert not re.search('class="bar"|Probability', found["logits"])


def probabilities(answer: list[object]) -> list[float]:
    """All numbers of an answer that are probabilities, in order."""
    found: list[float] = []
    for each in answer:
        if isinstance(each, list):
            found += probabilities(each)
        elif isinstance(each, float):
            found.append(each)
        elif isinstance(each, dict):
            inner = each.get("probabilities", each.get("probability", each.get("relevance_score")))
            found += probabilities(inner if isinstance(inner, list) else [inner])
    return found
