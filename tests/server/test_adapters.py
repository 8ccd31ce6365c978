"""Adapters behind a real server: by tensors, by the SDK and over HTTP a score is that of the same tokens alone."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from transformers import AutoTokenizer

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore_client import InvalidRequest, ScoreClient
from tests.server.api import api_of, call
from tests.server.conftest import StartServer
from tests.support.adapters import AdaptedTruth, Adapter, write
from tests.support.comparison import TOLERANCE
from tests.support.truth import Truth

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

QUERY, ITEMS, LABELS = "Is this a fruit?", [" an apple", " 19 hammers", " a pear"], (5, 9)


@pytest.fixture(scope="module")
def adapters(tiny_lm: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    model, directory = Truth(tiny_lm).model, tmp_path_factory.mktemp("adapters")
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm)
    invocation = tokenizer("an apple", add_special_tokens=False)["input_ids"][-1:]
    kinds = {
        "tone": Adapter(),
        "late": Adapter(config={"alora_invocation_tokens": invocation}),
        "grade": Adapter(labels=3),
    }
    return {
        name: write(kind, model, directory / name, seed) for seed, (name, kind) in enumerate(kinds.items())
    }


@pytest.fixture(scope="module")
def setting(adapters: dict[str, Path]) -> str:
    return ",".join(f"{name}={directory}" for name, directory in adapters.items())


@pytest.fixture(scope="module")
def server(start_server: StartServer, tiny_lm: Path, setting: str) -> Server:
    return start_server(tiny_lm, adapters=setting)


@pytest.fixture(scope="module")
def api(server: Server, setting: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with api_of(server, tmp_path_factory.mktemp("api") / "api.log", adapters=setting) as running:
        yield running


@pytest.fixture(scope="module")
def truth(tiny_lm: Path, adapters: dict[str, Path]) -> AdaptedTruth:
    return AdaptedTruth(tiny_lm, adapters)


def expected(
    truth: AdaptedTruth, checkpoint: Path, names: Sequence[str], labels: Sequence[int]
) -> np.ndarray:
    encoded = AutoTokenizer.from_pretrained(checkpoint)([QUERY + item for item in ITEMS])["input_ids"]
    return np.stack(
        [truth.scores([name], ids, [[]], labels)[0] for name, ids in zip(names, encoded, strict=True)]
    )


def test_each_door_scores_by_the_adapter_it_names(
    server: Server, api: Api, truth: AdaptedTruth, tiny_lm: Path
) -> None:
    own = expected(truth, tiny_lm, [""] * 3, LABELS)
    with ScoreClient(server.grpc_url) as client:
        for name in ("", "tone", "late"):
            wanted = expected(truth, tiny_lm, [name] * 3, LABELS)
            by_text = client.score(QUERY, ITEMS, label_token_ids=LABELS, adapter=name)
            np.testing.assert_allclose(by_text.scores, wanted, atol=TOLERANCE)
            body = {"query": QUERY, "items": ITEMS, "label_token_ids": LABELS}
            reply = call(api, "/v1/score", body | ({"model": name} if name else {}))
            np.testing.assert_allclose(reply.json["scores"], wanted, atol=TOLERANCE)
            # The control: an adapter that nobody applied.
            assert not name or np.abs(wanted - own).max() > 10 * TOLERANCE
        names = ["tone", "", "late"]
        mixed = client.score(QUERY, ITEMS, label_token_ids=LABELS, item_adapters=names)
        np.testing.assert_allclose(mixed.scores, expected(truth, tiny_lm, names, LABELS), atol=TOLERANCE)
        with pytest.raises(InvalidRequest, match="adapter 'tune' is none of tone, late, grade"):
            client.score(QUERY, ITEMS, label_token_ids=LABELS, adapter="tune")
    assert call(api, "/v1/score", body | {"model": "tune"}).status == 404


def test_a_head_of_an_adapter_is_read_over_http(
    server: Server, api: Api, truth: AdaptedTruth, tiny_lm: Path
) -> None:
    wanted = expected(truth, tiny_lm, ["grade"] * 3, ())
    with ScoreClient(server.grpc_url) as client:
        np.testing.assert_allclose(client.score(QUERY, ITEMS, adapter="grade").scores, wanted, atol=TOLERANCE)
        with pytest.raises(InvalidRequest, match="label"):
            client.score(QUERY, ITEMS, labels=[" a"], adapter="grade")
    texts = [QUERY + item for item in ITEMS]
    reply = call(api, "/classify", {"model": "grade", "input": texts, "use_activation": False})
    np.testing.assert_allclose([each["probs"] for each in reply.json["data"]], wanted, atol=TOLERANCE)
