"""Workers as settings ask for them, and what is refused before one is built."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hiscore.decoding.worker.build import prefill_token_budget
from hiscore.layers.scaled_fp8 import ScaledLinear
from hiscore.models.deepseek.decoder import DsaDecoder
from tests.support import published_dsa, tiny_dsa
from tests.support.decode_client import serving
from tests.support.decoding import build, checkpoint, prompt
from tests.unit.decoding.worker.test_worker_engine import call


@pytest.mark.slow
def test_a_checkpoint_in_fp8_decodes_in_fp8_if_asked_to(tmp_path: Path) -> None:
    """In float32 the same tokens as with its weights dequantised before; in fp8 other logits."""
    published, dense = published_dsa.make("deepseek-experts", tmp_path)
    found = []
    for path, keeps_fp8 in ((dense, False), (published, False), (published, True)):
        worker = build(path, "dsa", keeps_fp8=keeps_fp8)
        weights = cast(Any, worker._model)._decoder.weights
        assert isinstance(weights.layers[0].attention.q_up, ScaledLinear) == keeps_fp8
        with serving(worker) as client:
            outcome = client.submit(**call(1))
            client.wait([outcome])
        assert client.failures == []
        found.append(outcome.tokens)
    assert found[0] == found[1]
    assert len(found[2]) == len(found[1])
    assert found[2] != found[1]


@pytest.mark.slow
def test_experts_are_told_a_step_from_a_prefill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU their products of few rows are others than those of many."""
    experts, seen = DsaDecoder._experts, []

    def watched(decoder: DsaDecoder, of: Any, h: torch.Tensor, step: bool) -> torch.Tensor:
        seen.append((len(h), step))
        return experts(decoder, of, h, step)

    monkeypatch.setattr(DsaDecoder, "_experts", watched)
    with serving(build(tiny_dsa.make("deepseek-experts", tmp_path), "dsa")) as client:
        outcome = client.submit(prompt(20), max_tokens=4)
        client.wait([outcome])
    assert client.failures == []
    routed = tiny_dsa.SIZES["num_hidden_layers"] - tiny_dsa.SIZES["first_k_dense_replace"]
    # Of the prompt's last layer, only the row that is read.
    assert seen[:routed] == [(20, False)] * (routed - 1) + [(1, False)]
    assert seen[routed:]
    assert set(seen[routed:]) == {(1, True)}


@pytest.mark.parametrize(("gib", "tokens"), [(80, 8_192), (24, 4_096)])
def test_the_first_part_of_a_prompt_sees_no_more_than_an_indexer_selects(
    gib: int, tokens: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others are prefilled in longer forwards where the GPU has room for them."""
    device = torch.device("cuda")
    properties = SimpleNamespace(total_memory=gib * 2**30)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    assert prefill_token_budget(checkpoint("glm-shared", tmp_path / "glm"), device) == 2_048
    assert prefill_token_budget(checkpoint("qwen3", tmp_path / "qwen3"), device) == tokens
    # Layers that keep a window hold a whole forward.
    assert prefill_token_budget(checkpoint("gemma3", tmp_path / "gemma3"), device) == 4_096
