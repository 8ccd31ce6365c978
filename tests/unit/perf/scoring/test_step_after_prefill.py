"""The decode step behind a prefill computes what a longer prompt would."""

import numpy as np
import pytest

from hiscore.device import Uploads
from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.request import MultiItemPrompt, ScoreRequest
from hiscore.scoring.scorer import Scorer
from perf.scoring import ablation_variants as variants
from perf.scoring.step_after_prefill import StepAfter, decode_step

LABELS = np.array([5, 77], np.int32)


def scores(pending) -> np.ndarray:
    return np.concatenate([answer.scores for answer in pending.result()[0]])


@pytest.mark.parametrize("sampled", [False, True])
def test_a_decode_step_computes_what_a_longer_prompt_would(
    scorer: Scorer, calls: list[ScoreRequest], sampled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    fed: list[np.ndarray] = []

    def spying(forward, tokens):
        fed.append(tokens)
        return decode_step(forward, tokens)

    monkeypatch.setattr("perf.scoring.step_after_prefill.decode_step", spying)
    stepping = variants.with_decode_step(scorer, sampled)
    stepping.submit(calls).result()
    runner = stepping.runner
    assert isinstance(runner, StepAfter)
    assert runner.stepped is not None
    found = scorer._computation.head.label_logits(LABELS, Uploads(scorer.device))(runner.stepped).numpy()
    singles = [single for call in calls for single in variants.as_single_items(call)]

    def after(tokens: np.ndarray) -> np.ndarray:
        """Label logits of every item's prompt with one token more."""
        longer = [
            np.append(single.prompt.tokens, token) for single, token in zip(singles, tokens, strict=True)
        ]
        prompts = [MultiItemPrompt(ids.astype(np.int32), len(ids), np.array([0])) for ids in longer]
        answers = scores(
            scorer.submit([ScoreRequest(p, LABELS, ScoreOptions(apply_softmax=True)) for p in prompts])
        )
        return np.log(answers[:, 0] / answers[:, 1])

    np.testing.assert_allclose(found[:, 0] - found[:, 1], after(fed[0]), atol=1e-3, rtol=1e-3)
    assert np.abs(after(fed[0]) - after(np.roll(fed[0], 1))).max() > 0.1


def test_a_decode_step_refuses_a_pool_that_is_in_use(checkpoints, calls: list[ScoreRequest]) -> None:
    caching = Scorer(checkpoints("qwen3")[0], "cpu", "float32", 1_024, query_cache_bytes=2**20)
    with pytest.raises(ValueError, match="query cache"):
        variants.with_decode_step(caching, sampled=False)
    cut = Scorer(checkpoints("qwen3")[0], "cpu", "float32", 32, query_cache_bytes=0)
    with pytest.raises(ValueError, match="uses the pool"):
        variants.with_decode_step(cut, sampled=False).submit(calls)
