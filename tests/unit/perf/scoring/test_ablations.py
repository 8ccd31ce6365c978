"""The check before the clock runs sees an arm that gives other scores."""

from pathlib import Path

import numpy as np
import pytest

from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.request import ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.scoring.ablation_groups import CPU, Arm, Group, groups
from perf.scoring.ablations import check

# Float32 sums in another order; scores are probabilities.
TOLERANCE = 2e-5


@pytest.fixture(scope="module")
def scorer(checkpoints) -> Scorer:
    return load_decoder_scorer(checkpoints("qwen3")[0], "cpu", "float32", 1_024, query_cache_bytes=0)


def test_the_check_of_a_group_sees_a_wrong_arm(checkpoints, scorer: Scorer, tmp_path: Path) -> None:
    caching = load_decoder_scorer(checkpoints("qwen3")[0], "cpu", "float32", CPU.budget, CPU.cache_bytes)
    found = {group.name: group for group in groups(scorer, caching, CPU)}
    packed = found["multi-item, alone"]
    assert check(packed, TOLERANCE) <= TOLERANCE

    def shuffled(batch: list[ScoreRequest]):
        pending = scorer.submit(batch)
        answers, stats = pending.result()
        answers[0].scores[:] = np.roll(answers[0].scores, 1, axis=0)
        pending.result = lambda: (answers, stats)  # type: ignore[method-assign]
        return pending

    wrong = Group("wrong", "", packed.batches, {"right": Arm(scorer.submit), "wrong": Arm(shuffled)})
    with pytest.raises(SystemExit, match="'wrong' gives other scores"):
        check(wrong, TOLERANCE)
    cache = found["query cache, alone"]
    caching.submit(cache.batches[0]).result()
    check(cache, TOLERANCE)
    unserved = Group("unserved", "", packed.batches, {"cached": Arm(scorer.submit, cached=True)})
    with pytest.raises(SystemExit, match="query cache"):
        check(unserved, TOLERANCE)
