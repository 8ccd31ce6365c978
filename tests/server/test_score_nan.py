from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from hiscore.launcher import Server
from tests.server.conftest import StartServer
from tests.server.wire import WAYS, Refused, score_tokens
from tests.support import tiny_models
from tests.support.comparison import check, truth_of
from tests.support.strategies import Tokens

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

POISON = 123
LABELS = [5, 77, 401]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One row of the embedding is NaN. (Mistral's head is not its embedding.)"""
    directory = tiny_models.make("mistral", tmp_path_factory.mktemp("poisoned"))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON] = float("nan")
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
    return directory


@pytest.fixture(scope="module")
def poisoned(start_server: StartServer, checkpoint: Path) -> Server:
    return start_server(checkpoint, models="scorer", query_cache_bytes=2**20)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("options", [{}, {"apply_softmax": True}], ids=["vocabulary", "softmax"])
def test_a_score_that_is_not_finite_is_an_error(way: str, options: dict[str, bool], poisoned: Server) -> None:
    with pytest.raises(Refused, match="the model's output is not a finite number") as raised:
        score_tokens(poisoned, Tokens([1, 2], [[3], [POISON]]), LABELS, way, **options)
    # Over /generate Triton gives every model's error as HTTP 400.
    assert raised.value.code == ("INVALID_ARGUMENT" if way == "generate" else "INTERNAL")


def test_the_calls_beside_it_are_right(poisoned: Server, checkpoint: Path) -> None:
    good, bad = Tokens([1, 2, 3] * 9, [[3], [4, 5]]), Tokens([1, 2, 3] * 9, [[3], [POISON]])
    expected = truth_of(checkpoint).scores(good.query, good.items, LABELS)

    def outcome(call: Tokens) -> bool:
        try:
            check(score_tokens(poisoned, call, LABELS).scores, expected, over_vocabulary=True)
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(12) as pool:
        assert list(pool.map(outcome, [good, bad] * 12)) == [True, False] * 12
