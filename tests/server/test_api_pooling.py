"""`/pooling` and the scorer's values at places, on a real server, against transformers."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore_client import InvalidRequest, ScoreClient
from tests.server.api import api_of, call
from tests.server.conftest import StartServer
from tests.support import tiny_encoders
from tests.support.comparison import TOLERANCE

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

TEXTS = ["an apple", "19 hammers", "What is a fruit?"]


@pytest.fixture(scope="module")
def server(start_server: StartServer, tmp_path_factory: pytest.TempPathFactory) -> Server:
    made = tiny_encoders.make("bert", tmp_path_factory.mktemp("tokens"), 3, of="TokenClassification")
    return start_server(made)


@pytest.fixture(scope="module")
def api(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    with api_of(server, tmp_path_factory.mktemp("api") / "api.log") as running:
        yield running


@torch.inference_mode()
def truth_of(checkpoint: Path) -> list[np.ndarray]:
    """float32 [tokens, labels] of each text, one at a time."""
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    model = AutoModelForTokenClassification.from_pretrained(checkpoint).eval()
    return [model(**tokenizer(text, return_tensors="pt")).logits[0].numpy() for text in TEXTS]


def test_tokens_have_transformers_logits(api: Api, server: Server) -> None:
    truth = truth_of(server.checkpoint)
    answer = call(api, "/pooling", {"input": TEXTS, "use_activation": False}).json
    for each, expected in zip(answer["data"], truth, strict=True):
        np.testing.assert_allclose(each["data"], expected, atol=TOLERANCE)
    assert answer["usage"]["prompt_tokens"] == sum(map(len, truth))
    ids = AutoTokenizer.from_pretrained(server.checkpoint)(TEXTS)["input_ids"]
    with ScoreClient(server.grpc_url) as client:
        found = client.score_ids([], ids, places=[0, len(ids[0])])
        assert found.places.tolist() == [0, len(ids[0])]
        np.testing.assert_allclose(found.place_values, [truth[0][0], truth[1][0]], atol=TOLERANCE)
        assert found.scores.shape == (3, 0)
        with pytest.raises(InvalidRequest, match="without a query"):
            client.score_ids(ids[0], ids)
    assert "score" not in server.models
