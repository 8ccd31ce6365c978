"""The examples of docs/api.md, docs/api/ and the README run as they stand, but for the addresses."""

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore_client import ScoreClient
from tests.support.client_environment import ROOT, run

pytestmark = pytest.mark.server

BLOCK = re.compile(r"^```(bash|sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# The default model answers all but those of classifiers, which test_api_pooling calls.
OF_ROUTES = sorted(page for page in (ROOT / "docs/api").glob("*.md") if page.name != "pooling.md")
PAGES = [ROOT / "docs/api.md", *OF_ROUTES]


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each example that calls the API."""
    return [
        (language, text) for language, text in BLOCK.findall(page.read_text()) if "localhost:8080" in text
    ]


RIGHT: Mapping[str, Callable[[Any], Mapping[str, float]]] = {
    "rerank": lambda answer: {each["index"]: each["relevance_score"] for each in answer["results"]},
    "decisions": lambda answer: {
        "money": answer["answers"][0]["probability"],
        answer["answers"][1]["choice"]: max(
            each["probability"] for each in answer["answers"][1]["probabilities"]
        ),
        "annoyed": answer["answers"][2]["score"],
    },
    "systemone": lambda answer: {
        "money": answer["answers"]["money"]["noul"],
        answer["answers"]["times"]["choice"]: max(answer["answers"]["times"]["probabilities"].values()),
        "annoyed": answer["answers"]["anger"]["score"],
    },
}
"""Reads the first answer of a page that says what the default model answers."""
EXPECTED: Mapping[str, Mapping[str | int, float]] = {
    "rerank": {1: 0.53},
    "decisions": {"money": 0.60, "twice": 0.54, "annoyed": 1.16},
    "systemone": {"money": 0.60, "twice": 0.54, "annoyed": 1.25},
}
EXAMPLES = [
    pytest.param(language, text, id=f"{page.stem}-{index}-{language}")
    for page in PAGES
    for index, (language, text) in enumerate(blocks(page))
]


def test_every_route_has_a_page_with_examples() -> None:
    for page in PAGES[1:]:
        languages = {language for language, _ in blocks(page)}
        assert languages == {"bash", "python"}, f"{page.name} needs a curl and a client"


@pytest.mark.parametrize(("language", "text"), EXAMPLES)
def test_an_example_works(api: Api, server: Server, language: str, text: str, tmp_path: Path) -> None:
    here = text.replace("localhost:8080", api.url.removeprefix("http://")).replace(
        "localhost:8001", server.grpc_url
    )
    if language == "python":
        done = run(["python", "-"], here, tmp_path)
        assert done.returncode == 0, done.stderr
        assert done.stdout, "an example shows something"
        return
    done = run(
        ["bash", "-euc", here.replace("curl ", "curl --fail-with-body --no-progress-meter ")],
        directory=tmp_path,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for line in done.stdout.splitlines():
        if line.startswith("data: "):
            line = line.removeprefix("data: ").replace("[DONE]", "null")
        if line:
            json.loads(line)
    assert done.stdout


@pytest.mark.parametrize("name", RIGHT)
def test_the_default_model_answers_what_the_page_says(api: Api, name: str, tmp_path: Path) -> None:
    page = ROOT / f"docs/api/{name}.md"
    here = blocks(page)[0][1].replace("localhost:8080", api.url.removeprefix("http://"))
    found = RIGHT[name](json.loads(run(["bash", "-euc", here], directory=tmp_path).stdout))
    assert found == pytest.approx(EXPECTED[name], abs=0.006)  # rounded to hundredths, as the page has them
    assert all(f"{value:.2f}" in page.read_text() for value in EXPECTED[name].values())


def test_control_an_example_that_is_refused_is_noticed(api: Api, tmp_path: Path) -> None:
    text = f"curl --fail-with-body -s {api.url}/rerank -H 'Content-Type: application/json' -d '{{\"texts\": []}}'"
    assert run(["bash", "-euc", text], directory=tmp_path).returncode != 0


@pytest.mark.exhaustive
def test_the_first_example_of_the_readme_is_right(server: Server) -> None:
    readme = (ROOT / "README.md").read_text()
    found = re.search(r'"query": (".*?"), "items": (\[.*?\]), "labels": (\[.*?\])', readme)
    assert found
    query, items, labels = map(json.loads, found.groups())
    assert labels == [" fruit", " tool"]
    with ScoreClient(server.grpc_url) as client:
        apple, hammer = client.score(query, items, labels=labels, apply_softmax=True).scores
        assert apple[0] > 0.8 > 0.2 > hammer[0]
        # The control: asked in a way that does not end where the answer begins, it calls an apple no fruit.
        old = client.score(
            "Is this a fruit? ", ["apple", "hammer"], labels=[" Yes", " No"], apply_softmax=True
        )
        assert old.scores[0, 0] < 0.5
