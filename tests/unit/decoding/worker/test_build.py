"""Workers as settings ask for them, and what is refused before one is built."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from hiscore.decoding.worker.build import make_worker, prefill_token_budget
from hiscore.layers.scaled_fp8 import ScaledLinear
from hiscore.models.deepseek.config import read_architecture
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.parallel.leader import Ranks
from hiscore.settings import DecodeSettings
from tests.support import published_dsa, tiny_dsa
from tests.support.decode_client import serving
from tests.support.decoding import build, checkpoint, prompt
from tests.unit.decoding.worker.test_worker_engine import call


def test_kernels_for_a_prefill_on_the_cpu_are_refused_by_the_settings_name(tmp_path: Path) -> None:
    settings = DecodeSettings(checkpoint=str(tmp_path), selector="dsa", indexer_prefill="kernels")
    with (
        Ranks([torch.device("cpu")]) as leader,
        pytest.raises(ValueError, match=r"INDEXER_PREFILL is kernels.*set it to torch"),
    ):
        make_worker(settings, leader, cast(Any, None))


def test_keys_in_fp8_need_a_width_that_can_be_rotated(tmp_path: Path) -> None:
    checkpoint = tiny_dsa.make("glm-shared", tmp_path, index_head_dim=40)
    read_architecture(checkpoint)
    with pytest.raises(ValueError, match=r"INDEXER_DTYPE is fp8.*index_head_dim 40 is not a power of two"):
        read_architecture(checkpoint, fp8_indexer=True)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["deepseek", "glm-shared"])
def test_an_index_in_fp8_survives_preemption_to_the_byte(family: str, tmp_path: Path) -> None:
    """Sequences that are preempted and resume from the host give the tokens that they give alone."""
    checkpoint, found = tiny_dsa.make(family, tmp_path), []
    for dtype, sequences, quantum in (("fp8", 4, 6), ("fp8", 10, 0), ("auto", 10, 0)):
        worker = build(checkpoint, "dsa", sequences=sequences, dtype=torch.float64, indexer_dtype=dtype)
        index = worker._cache.index
        assert (index.dtype, index.shape[-1]) == (
            (torch.uint8, 36) if dtype == "fp8" else (torch.float64, 32)
        )
        with serving(worker, **({"quantum": quantum} if quantum else {})) as client:
            outcomes = [client.submit(**call(number)) for number in range(10)]
            client.wait(outcomes)
        assert client.failures == []
        found.append([outcome.tokens for outcome in outcomes])
    assert found[0] == found[1]
    # The control: it is not the choice of keys in float64.
    assert found[1] != found[2]


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
