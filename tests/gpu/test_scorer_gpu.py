"""The scorer on one CUDA GPU against transformers in float32, one item at a time."""

from pathlib import Path

import numpy as np
import pytest
import torch

from hiscore.cuda_runner import CudaRunner
from hiscore.options import ScoreOptions
from hiscore.scorer import ScoreCall, Scorer
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiny_models import FAMILIES, VOCABULARY, make
from tests.support.truth import Truth

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

LABELS = [5, 77, 401]
BATCH = [(13, [1, 7, 7, 0, 20, 3]), (0, [2, 1]), (1, [0, 0, 5]), (90, [31, 64, 2]), (6, [])]


def score(scorer: Scorer, calls: list[Tokens], options: ScoreOptions) -> list[np.ndarray]:
    labels = [] if scorer.facts.is_classifier else LABELS
    answers, _ = scorer.score([ScoreCall(call.call(), np.array(labels, np.int32), options) for call in calls])
    return [answer.scores for answer in answers]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory):
    made: dict[tuple[str, int | None], tuple[Path, Truth]] = {}

    def get(family: str, labels: int | None = None) -> tuple[Path, Truth]:
        if (family, labels) not in made:
            directory = make(family, tmp_path_factory.mktemp(family), labels)
            made[family, labels] = directory, Truth(directory)
        return made[family, labels]

    return get


@pytest.mark.parametrize("labels", [None, 3], ids=["causal", "classifier"])
@pytest.mark.parametrize("family", FAMILIES)
def test_float32_equals_transformers(family: str, labels: int | None, checkpoints) -> None:
    """Kernels in full float32: the same bound as on the CPU."""
    checkpoint, truth = checkpoints(family, labels)
    calls = [random_tokens(np.random.default_rng(0), q, items, VOCABULARY) for q, items in BATCH]
    for budget in (1_024, 64):
        scorer = Scorer(checkpoint, "cuda", "float32", budget)
        for options in (ScoreOptions(), ScoreOptions(apply_softmax=True)):
            for call, found in zip(calls, score(scorer, calls, options), strict=True):
                if call.items:
                    ids = [] if labels else LABELS
                    expected = truth.scores(call.query, call.items, ids, options.apply_softmax)
                    np.testing.assert_allclose(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_equals_itself_one_at_a_time_and_a_graph_equals_eager(family: str, checkpoints) -> None:
    checkpoint, _ = checkpoints(family)
    options = ScoreOptions(apply_softmax=True)
    calls = [random_tokens(np.random.default_rng(0), q, items, VOCABULARY) for q, items in BATCH]
    scorer = Scorer(checkpoint, "cuda", "bfloat16", 1_024, query_cache_bytes=0)
    together = score(scorer, calls, options)
    for call, found in zip(calls, together, strict=True):
        for item, row in zip(call.items, found, strict=True):
            alone = score(scorer, [Tokens(call.query, [item])], options)[0][0]
            np.testing.assert_allclose(row, alone, atol=5e-3, rtol=0)
    assert isinstance(scorer.runner, CudaRunner)
    scorer.runner._graphs.clear()
    for graph, eager in zip(together, score(scorer, calls, options), strict=True):
        np.testing.assert_array_equal(graph, eager)


def test_padding_rows_reach_nothing(checkpoints) -> None:
    """Garbage of an earlier, larger batch stands where the padding is; the scores do not notice."""
    scorer = Scorer(checkpoints("qwen3")[0], "cuda", "bfloat16", 1_024, query_cache_bytes=0)
    options = ScoreOptions(apply_softmax=True)
    call = random_tokens(np.random.default_rng(1), 13, [5, 9], VOCABULARY)
    first = score(scorer, [call], options)[0]
    scorer.runner.pool.fill_(float("nan"))
    scorer.runner._static.random_(0, 400)
    np.testing.assert_array_equal(score(scorer, [call], options)[0], first)
