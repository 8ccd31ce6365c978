"""The API's application in front of a fake of the models' gRPC, which answers with checksums or as a test says."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from hiscore.api.app import create_app
from hiscore.settings import ApiProcessSettings
from tests.client.faulty_server import FaultyServer, serving
from tests.support import tiny_tokenizers
from tests.support.chat_templates import CHATML

MakeClient = Callable[..., TestClient]
MakeSettings = Callable[..., ApiProcessSettings]


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration and the tokenizer of a causal LM with a chat template."""
    directory = tmp_path_factory.mktemp("tiny")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "max_position_embeddings": 256}
    (directory / "chat_template.jinja").write_text(CHATML)
    (directory / "config.json").write_text(json.dumps(config))
    return tiny_tokenizers.save(tiny_tokenizers.train(tiny_tokenizers.smollm2()), directory)


@pytest.fixture
def models() -> FaultyServer:
    server = FaultyServer()
    server.ready.add("decode")
    return server


@pytest.fixture
def make_settings(models: FaultyServer, checkpoint: Path) -> Iterator[MakeSettings]:
    with serving(models) as address:
        base = {"checkpoint": checkpoint, "backend": address, "listen_port": 1, "prompt_labels": "a,b"}
        yield lambda **given: ApiProcessSettings(**{**base, "served_models": "score,scorer,decode", **given})


@pytest.fixture
def make_client(make_settings: MakeSettings) -> Iterator[MakeClient]:
    with ExitStack() as stack:

        def make(**settings: Any) -> TestClient:
            app = create_app(make_settings(**settings))
            return stack.enter_context(TestClient(app, raise_server_exceptions=False))

        yield make


@pytest.fixture
def client(make_client: MakeClient) -> TestClient:
    return make_client()


@pytest.fixture
def description(client: TestClient) -> Any:
    return client.get("/openapi.json").json()


def schema_of(description: Any, path: str, answer: bool = False) -> Any:
    """The schema of a route's body or answer, in its OpenAPI description."""
    operation = description["paths"][path]["post"]
    content = (operation["responses"]["200"] if answer else operation["requestBody"])["content"]
    return {**content["application/json"]["schema"], "components": description["components"]}
