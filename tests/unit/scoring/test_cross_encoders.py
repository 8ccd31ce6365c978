"""Checkpoints that sentence-transformers wrote are scored as its own predict scores them, or refused by name."""

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from hiscore.api.models import Models
from hiscore.api.ranking.relevance import Ranker, Ranking
from hiscore.api.wire import ModelCall
from hiscore.errors import RequestError
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.facts import read_facts
from hiscore.models.support import servable
from hiscore.prompts.rerank import make_prompts
from hiscore.prompts.token_limits import NOTHING, TokenLimits, Truncation
from hiscore.scoring.pair_scorer import make_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest
from hiscore.server.server_resources import ServerResources
from hiscore_client import ScoreResult, Usage
from tests.support.client_environment import ROOT, TIMEOUT_S, package_file

pytestmark = pytest.mark.exhaustive

QUERY = "what is a panda?"
LONG = "the giant panda is a bear that eats bamboo in china " * 20
PAIRS = [
    *((QUERY, document) for document in ("an apple", "", "the giant panda is a bear", LONG)),
    ("", "an apple"),
    ("", ""),
    (LONG[:90], "12 nails"),
]
TOLERANCE = 1e-5
"""Of float32 sums in another order, for scores of up to 10."""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The checkpoints' directory, and what predict says of `PAIRS` by checkpoint."""
    directory = tmp_path_factory.mktemp("cross-encoders")
    packages = package_file("sentence_transformers").parent
    script = ROOT / "tests" / "clients" / "cross_encoders.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, packages, directory, json.dumps(PAIRS)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return directory, json.loads(done.stdout.splitlines()[-1])


NAMES = (
    "ettin", "mean", "weighted", "joined", "last", "distilled", "decoder-last", "decoder-pools",
    "decoder-both-ways", "one-module", "silent", "two-ids", "one-id", "no-system", "pairs", "classifier",
)  # fmt: skip


class Local:
    """The models, in this process."""

    def __init__(self, checkpoint: Path) -> None:
        self.scorer = make_scorer(checkpoint, "cpu", "float32", 2_048, 0, None, ServerResources())

    async def score_ids(
        self, query: Sequence[int], items: Sequence[Sequence[int]], labels: Sequence[int], **options: Any
    ) -> ScoreResult:
        laid_out = MultiItemPrompt.of(list(query), [list(each) for each in items])
        prompt = self.scorer.packing.prompt(laid_out)
        kept = ScoreOptions(raw_logits=options.get("raw_logits", False))
        (answer,), _ = self.scorer.score([ScoreRequest(prompt, np.array(labels, np.int32), kept)])
        assert not isinstance(answer, RequestError), answer
        return ScoreResult(answer.scores, Usage(1, 0), "id")


def ranker_of(checkpoint: Path) -> Ranker:
    prompts, recipe = make_prompts(checkpoint)
    limits = TokenLimits(read_facts(checkpoint).context_length, 100_000)
    return Ranker(cast("Models", Local(checkpoint)), limits, prompts, recipe)


def rank(ranker: Ranker, instruction: str | None = None, cut: bool = True) -> Ranking:
    queries, documents = zip(*PAIRS, strict=True)
    truncation = Truncation(prompt=ranker.context_length) if cut else NOTHING
    return asyncio.run(ranker.rank(queries, documents, ModelCall("id", "m"), instruction, truncation))


@pytest.mark.parametrize("name", NAMES)
def test_scores_equal_predict(name: str, written: tuple[Path, dict[str, Any]]) -> None:
    directory, expected = written
    ranker = ranker_of(directory / name)
    wanted = expected[name]["predict"]
    np.testing.assert_allclose(rank(ranker).scores, wanted, rtol=TOLERANCE, atol=TOLERANCE)
    assert np.ptp(wanted) > 0.01
    if "instructed" in expected[name]:
        instructed = expected[name]["instructed"]
        found = rank(ranker, "Be strict.").scores
        np.testing.assert_allclose(found, instructed, rtol=TOLERANCE, atol=TOLERANCE)
        # The control: another prompt is another score.
        assert not np.allclose(found, wanted, rtol=TOLERANCE, atol=TOLERANCE)


def keys_of(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values within a JSON file."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        yield from (
            keys_of(inner, (*path, key)) if isinstance(inner, dict | list) and inner else [(*path, key)]
        )


def mutated(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return f"{value}x"
    return "x"


def outcome(checkpoint: Path) -> tuple[str, list[float]]:
    """Why a checkpoint is refused, or its scores."""
    try:
        return "", rank(ranker_of(checkpoint)).scores
    except (ValueError, UnsupportedCheckpoint) as refused:
        return str(refused), []


# Names of modules, versions, and a dropout that predict never applies; and a name that is none where it is null.
SAID_FOR_PEOPLE = {"idx", "name", "sentence_transformers", "transformers", "pytorch", "dropout"}


def test_items_share_a_query_where_the_head_reads_the_last_token(
    written: tuple[Path, dict[str, Any]],
) -> None:
    names = ("decoder-last", "decoder-pools", "decoder-both-ways")
    assert [read_facts(written[0] / name).is_encoder for name in names] == [False, True, True]


@pytest.mark.parametrize(
    "name", ["ettin", "mean", "joined", "decoder-last", "decoder-pools", "two-ids", "one-id"]
)
def test_no_key_is_read_past(name: str, written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    """Whatever sentence-transformers wrote is refused by name if it is another, or gives another score."""
    source = written[0] / name
    scores = rank(ranker_of(source)).scores
    files = [
        source / "modules.json",
        source / "config_sentence_transformers.json",
        *source.glob("*_*/config.json"),
    ]
    for file in (*files, source / "sentence_bert_config.json"):
        paths = [path for path in keys_of(json.loads(file.read_text())) if path[-1] not in SAID_FOR_PEOPLE]
        for path in [*paths, ("unknown",), (0, "unknown")]:
            checkpoint = shutil.copytree(source, tmp_path / "mutated", dirs_exist_ok=True)
            place = contents = json.loads(file.read_text())
            if isinstance(contents, list) == isinstance(path[0], str):
                continue
            for key in path[:-1]:
                place = place[key]
            wrong = mutated(place.get(path[-1]) if isinstance(place, dict) else place[path[-1]])
            place[path[-1]] = wrong
            (checkpoint / file.relative_to(source)).write_text(json.dumps(contents))
            refusal, found = outcome(checkpoint)
            if refusal:
                says = file.name in refusal, file.parent.name in refusal, str(wrong) in refusal
                assert any(says), (file.name, path, refusal)
                assert "unknown" not in path or "unknown" in refusal
            else:
                assert not np.allclose(found, scores, rtol=TOLERANCE, atol=TOLERANCE), (file.name, path)


def test_weights_of_another_head_are_refused(written: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    checkpoint = shutil.copytree(written[0] / "ettin", tmp_path / "ettin")
    shutil.copy(
        checkpoint / "3_LayerNorm" / "model.safetensors", checkpoint / "4_Dense" / "model.safetensors"
    )
    with pytest.raises(UnsupportedCheckpoint, match=re.escape("'linear.bias' is not in both '4_Dense/mo")):
        ranker_of(checkpoint)
    (checkpoint / "4_Dense" / "model.safetensors").unlink()
    with pytest.raises(UnsupportedCheckpoint, match=r"'4_Dense/model.safetensors' is missing"):
        ranker_of(checkpoint)


def test_a_module_that_is_not_served_is_named_at_the_start(
    written: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    checkpoint = shutil.copytree(written[0] / "ettin", tmp_path / "ettin")
    modules = checkpoint / "modules.json"
    modules.write_text(modules.read_text().replace("layer_norm.LayerNorm", "lstm.LSTM"))
    assert "modules.json: LSTM is none of LogitScore, Pooling" in servable(checkpoint).left_out["scorer"]
