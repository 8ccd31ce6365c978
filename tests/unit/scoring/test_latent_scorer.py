"""The scorer of latent attention against transformers, one item at a time: with an indexer, and without one."""

import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.models.deepseek import decoder
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import Segment
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.support import servable
from hiscore.scoring import pair_scorer
from hiscore.scoring.latent_scorer import LatentRunner, load_latent_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.scoring.requests.query_key import PAGE
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from hiscore.server.server_resources import ServerResources
from hiscore.server.shared_weights import SharedWeights
from tests.support import tiny_dsa
from tests.support.comparison import INVARIANCE
from tests.support.strategies import Tokens, random_tokens
from tests.support.tiers import first_of
from tests.support.truth import Truth

CPU = torch.device("cpu")
LABELS = [5, 77, 201]
# Most rows see more tokens than the 16 that an indexer selects; the last call has segments that are expanded.
BATCH = [(13, [1, 7, 7, 0, 20, 3]), (0, [2, 1]), (1, [0, 0, 5]), (40, [31]), (6, []), (150, [3, 90, 7])]
Made = Callable[[str], tuple[Path, Truth]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    @cache
    def of(name: str) -> tuple[Path, Truth]:
        # With fewer heads some scores are exactly 0, and of equal ones transformers may select any.
        directory = tiny_dsa.make(name, tmp_path_factory.mktemp(name), index_n_heads=32)
        return directory, Truth(directory)

    return of


def calls(shapes: Sequence[tuple[int, list[int]]] = BATCH) -> list[Tokens]:
    rng = np.random.default_rng(0)
    return [random_tokens(rng, query, items, tiny_dsa.VOCABULARY) for query, items in shapes]


def error(scorer: Scorer, batch: Sequence[Tokens], truth: Truth) -> tuple[float, int]:
    """The largest difference from transformers, and how many tokens were found in the cache."""
    labels, options = np.array(LABELS, np.int32), ScoreOptions(apply_softmax=True)
    answers, stats = scorer.score(
        [ScoreRequest(scorer.packing.prompt(call.prompt()), labels, options) for call in batch]
    )
    differences = [
        answer.scores - truth.scores(call.query, call.items, LABELS, apply_softmax=True)
        for answer, call in zip(answers, batch, strict=True)
        if call.items
    ]
    return max(float(np.abs(each).max()) for each in differences), stats.cached_tokens


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", first_of("deepseek-experts", "deepseek-v3-experts", "glm-shared", "glm-experts")
)
def test_scores_equal_transformers_one_at_a_time(name: str, made: Made) -> None:
    """In one forward and in many, from the cache, and an item at a time."""
    checkpoint, truth = made(name)
    for budget in (4_096, 2 * PAGE):
        scorer = load_latent_scorer(checkpoint, "cpu", "float32", budget)
        (cold, none), (warm, found) = error(scorer, calls(), truth), error(scorer, calls(), truth)
        assert max(cold, warm) < INVARIANCE
        assert found > none
    scorer = load_latent_scorer(checkpoint, "cpu", "float32", 4_096, query_cache_bytes=0)
    for call in calls():
        assert all(error(scorer, [Tokens(call.query, [item])], truth)[0] < INVARIANCE for item in call.items)


def with_groups(forward: Any, change: Callable[[Any], Any]) -> Any:
    return forward._replace(groups=tuple(map(change, forward.groups)))


def without_last_of_context(segment: Segment) -> Segment:
    before = len(segment.slots) - segment.rows
    kept = [index for index in range(len(segment.slots)) if index != before - 1]
    return Segment(segment.slots[kept], segment.rows, absorbed=segment.absorbed)


WRONG: dict[str, tuple[Callable[[Any, Any], list[Segment]], tuple[int, list[int]], int]] = {
    "not its own beginning": (
        lambda whole, f: whole(with_groups(f, lambda g: g._replace(own_slots=g.own_slots[:0]))),
        (20, [90]),
        2 * PAGE,
    ),
    "a query one token short": (
        lambda whole, f: [without_last_of_context(each) for each in whole(f)],
        (40, [5, 7]),
        4_096,
    ),
    "all tokens, not those selected": (
        lambda whole, f: [Segment(each.slots, each.rows, full=True) for each in whole(f)],
        (40, [5, 7]),
        4_096,
    ),
    "no query": (
        lambda whole, f: whole(with_groups(f, lambda g: g._replace(context_rows=slice(0, 0)))),
        (13, [7, 7]),
        4_096,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "shape", "budget"), WRONG.values(), ids=WRONG)
def test_control_a_row_that_sees_others_has_another_score(
    wrong: Any, shape: tuple[int, list[int]], budget: int, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, truth = made("deepseek-experts")
    scorer = load_latent_scorer(checkpoint, "cpu", "float32", budget, query_cache_bytes=0)
    assert error(scorer, calls([shape]), truth)[0] < INVARIANCE
    whole = LatentRunner._segments
    monkeypatch.setattr(LatentRunner, "_segments", lambda self, f: wrong(lambda given: whole(self, given), f))
    assert error(scorer, calls([shape]), truth)[0] > 100 * INVARIANCE


def test_it_is_scored_on_one_cpu(made: Made, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    checkpoint, _ = made("deepseek-v3-experts")
    assert servable(checkpoint).selectors == ("dense",)
    assert {"scorer", "decode"} <= set(servable(checkpoint).models)
    assert "set DEVICE=cpu" in servable(checkpoint, on_gpu=True).left_out["scorer"]
    assert "decoded on a CPU alone" in servable(checkpoint, on_gpu=True).left_out["decode"]
    assert "TENSOR_PARALLEL is 2" in servable(checkpoint, ranks=2).left_out["scorer"]
    config = json.loads((checkpoint / "config.json").read_text())
    classifier = config | {"architectures": ["DeepseekV3ForSequenceClassification"]}
    (tmp_path / "config.json").write_text(json.dumps(classifier))
    assert "is none of DeepseekV3ForCausalLM" in servable(tmp_path).left_out["scorer"]
    monkeypatch.setattr(pair_scorer, "use_device", lambda _: type("Gpu", (), {"type": "cuda"})())
    with pytest.raises(UnsupportedCheckpoint, match="'deepseek_v3' is scored on a CPU alone: set DEVICE=cpu"):
        pair_scorer.make_scorer(checkpoint, "cuda", "auto", 64, None, None, ServerResources())


@pytest.mark.slow
def test_decode_maps_the_weights_that_the_scorer_has_loaded(
    made: Made, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint, _ = made("deepseek-experts")
    resources = ServerResources(weights=SharedWeights(tmp_path))
    load_latent_scorer(checkpoint, "cpu", "float32", 64, resources=resources)
    loaded = DsaDecoder(checkpoint, CPU, torch.float32).weights
    monkeypatch.setattr(decoder, "load_weights", None)
    mapped = DsaDecoder(checkpoint, CPU, torch.float32, shared=SharedWeights(tmp_path)).weights
    assert torch.equal(mapped.head, loaded.head)
    with pytest.raises(TypeError):  # the control: in another format they are others
        DsaDecoder(checkpoint, CPU, torch.bfloat16, shared=SharedWeights(tmp_path))
