"""Requests made from the OpenAPI description, right and wrong: never a 500, and the API answers on."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from tests.server.api import api_of, call
from tests.server.raw_http import leak

schemathesis = pytest.importorskip("schemathesis")

pytestmark = [pytest.mark.server, pytest.mark.slow]

EXAMPLES = settings(
    max_examples=60,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
ALLOWED = {200, 400, 404, 413, 415, 429}


@pytest.fixture(scope="module")
def api(lm: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    # The small model has no token for Yes.
    log = tmp_path_factory.mktemp("api") / "api.log"
    with api_of(lm, log, prompt_labels="a,b", prompt_template=str(template(log.parent))) as running:
        yield running


def template(directory: Path) -> Path:
    path = directory / "own.jinja"
    path.write_text("{{ instruction }} {{ query }} {{ document }}\n\n<|im_end|>")
    return path


def test_no_request_breaks_a_route(api: Api) -> None:
    schema = schemathesis.openapi.from_url(f"{api.url}/openapi.json")
    seen: set[int] = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        modes = schemathesis.GenerationMode
        for mode in (modes.POSITIVE, modes.NEGATIVE):

            @EXAMPLES
            @given(case=operation.as_strategy(generation_mode=mode))
            def run(case: Any) -> None:
                answer = case.call(base_url=api.url)
                seen.add(answer.status_code)
                assert answer.status_code in ALLOWED, (case.path, case.body, answer.text)
                assert leak(answer.text) == ""

            run()
    # The control: requests of both kinds were made.
    assert {200, 400} <= seen
    assert call(api, "/rerank", {"query": "a", "texts": ["b"]}).status == 200
