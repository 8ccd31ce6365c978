"""Classifiers whose decoders attend in both directions, against transformers, one item at a time, in float32."""

from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hiscore.models.facts import read_facts
from hiscore.models.support import servable, unscorable
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.pair_scorer import load_encoder_scorer, make_scorer
from hiscore.server.server_resources import ServerResources
from tests.support.config_mutations import changed
from tests.support.cuda_runner import Capture, launch_on_cpu
from tests.support.scoring import request, score, use_runner
from tests.support.strategies import random_tokens
from tests.support.tiers import first_of
from tests.support.tiny_models import BOTH_WAYS, VOCABULARY, make
from tests.support.truth import Truth

Made = Callable[..., Path]
# float32 sums in another order.
TOLERANCE = 2e-5
CALLS = [
    random_tokens(np.random.default_rng(index), query, items, VOCABULARY)
    for index, (query, items) in enumerate([(13, [1, 7, 7, 0, 20]), (0, [2, 1]), (1, [0, 5]), (40, [31])])
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Made:
    return cache(lambda name, labels=2: make(name, tmp_path_factory.mktemp(name), labels))


@pytest.mark.parametrize("name", first_of(*BOTH_WAYS, others=pytest.mark.slow))
def test_scores_equal_transformers_one_item_at_a_time(name: str, checkpoint: Made) -> None:
    """In one forward and in several; attention to earlier tokens alone, the control, gives other scores."""
    for labels in (1, 3):
        source = checkpoint(name, labels)
        truth = Truth(source)
        expected = [truth.scores(call.query, call.items) for call in CALLS]
        for budget in (4_096, 24):
            scorer = load_encoder_scorer(source, "cpu", "float32", budget)
            for found, right in zip(score(scorer, CALLS), expected, strict=True):
                np.testing.assert_allclose(found, right, atol=TOLERANCE, rtol=0)
        (one_way,) = score(load_decoder_scorer(source, "cpu", "float32", 4_096), CALLS[:1])
        assert np.abs(one_way - expected[0]).max() > 100 * TOLERANCE


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["llama-mean", "embedding-gemma"])
def test_the_kernels_of_a_gpu_equal_transformers(
    name: str, checkpoint: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In Triton's interpreter; rows are padded, and graphs are computed when replayed."""
    pytest.importorskip("triton", reason="the Triton language is not installed")
    from hiscore.layers.triton_ops import TritonOps
    from hiscore.prefill import encoder_cuda_runner

    source = checkpoint(name, 1)
    scorer = load_encoder_scorer(source, "cpu", "float32", 64)
    launch_on_cpu(monkeypatch)
    monkeypatch.setattr(encoder_cuda_runner, "GraphCapture", lambda device: Capture(nullcontext))
    encoder = scorer.runner._encoder
    a = encoder._decoder.architecture
    encoder._ops = TritonOps(a.heads, a.kv_heads, a.head_dim, a.norm_eps, a.activation)
    use_runner(scorer, encoder_cuda_runner.CudaEncoderRunner(encoder, 64))
    expected = Truth(source).scores(CALLS[0].query, CALLS[0].items)
    np.testing.assert_allclose(score(scorer, CALLS[:1])[0], expected, atol=TOLERANCE, rtol=0)


def test_an_item_is_read_with_the_query_but_joined_as_text(checkpoint: Made) -> None:
    """Prompts of such rerankers are one text, as a decoder's, and usage counts the query with every item."""
    source = checkpoint("llama-mean")
    facts = read_facts(source)
    assert (facts.is_encoder, facts.joins_pairs, facts.is_classifier) == (True, False, True)
    scorer = make_scorer(source, "cpu", "float32", 4_096, None, None, ServerResources())
    call = CALLS[0]
    (answer,), _ = scorer.score([request(scorer, call)])
    assert answer.prompt_tokens == sum(len(call.query) + len(item) for item in call.items)


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("llama-mean", {"pooling": "weighted_avg"}, "pooling 'weighted_avg' is none of avg, cls, last"),
        ("llama-mean", {"temperature": 0}, "temperature 0 is not positive"),
        ("qwen3-both-ways", {"pooling": "avg"}, "pooling is 'avg', and its class reads the last token"),
        ("qwen3-both-ways", {"architectures": ["Qwen3ForCausalLM"]}, "it attends in both directions"),
        ("qwen3-both-ways", {"use_bidirectional_attention": True}, "it attends in both directions"),
    ],
)
def test_what_is_not_computed_is_refused_by_name(
    name: str, changes: dict[str, Any], reason: str, checkpoint: Made, tmp_path: Path
) -> None:
    source = changed(checkpoint(name), tmp_path / "changed", **changes)
    assert reason in servable(source).left_out["scorer"]


@pytest.mark.parametrize(
    ("model_type", "stem"),
    [("gemma2", "Gemma2"), ("gpt_oss", "GptOss"), ("phi3", "Phi3"), ("qwen3_5_text", "Qwen3_5Text")],
)
def test_a_family_without_attention_both_ways_says_so(model_type: str, stem: str) -> None:
    config = {"model_type": model_type, "architectures": [f"{stem}ForSequenceClassification"]}
    assert unscorable(config) is None
    assert f"in both directions, which is not computed for {model_type}" in str(
        unscorable(config | {"is_causal": False})
    )


def test_several_devices_are_refused(checkpoint: Made) -> None:
    assert "compute on one device" in servable(checkpoint("llama-mean"), ranks=2).left_out["scorer"]
