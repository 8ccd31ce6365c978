"""No key of a config with a lightning indexer is silently ignored that transformers honours."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from hiscore.models.deepseek import config
from hiscore.models.deepseek.decoder import DsaDecoder
from tests.support import tiny_dsa, tiny_models
from tests.support.config_mutations import changed, keys_of, verdict_of, wrong
from tests.support.dsa_rank_work import hidden_of
from tests.support.tiers import first_of

pytestmark = pytest.mark.usefixtures("short_reprs")

CPU = torch.device("cpu")
KEYS = keys_of(model_type for model_type, _ in (*tiny_dsa.FAMILIES.values(), *tiny_models.FAMILIES.values()))
IDS = torch.randint(tiny_dsa.VOCABULARY, (40,), generator=torch.Generator().manual_seed(1))
# In float64 but for norms, rotary tables, router and indexer; see test_decoder.
BOUND = 1e-5


def read(checkpoint: Path) -> Any:
    """What we read of a checkpoint's config: the decoder is made of nothing else."""
    architecture, of_texts = config.read_architecture(checkpoint)
    return architecture, of_texts.rope_parameters


def load(checkpoint: Path) -> DsaDecoder:
    return DsaDecoder(checkpoint, CPU, torch.float64)


@torch.inference_mode()
def truth(checkpoint: Path) -> torch.Tensor:
    return tiny_dsa.reference(checkpoint, torch.float64)(IDS[None], use_cache=False).logits[0]


def compare(decoder: DsaDecoder, expected: torch.Tensor) -> None:
    found = hidden_of(decoder, IDS) @ decoder.weights.head.T
    torch.testing.assert_close(found, expected, atol=BOUND, rtol=0)


verdict = partial(verdict_of, load, truth, compare)


@pytest.mark.slow
@pytest.mark.parametrize("family", first_of("deepseek-experts", "glm-shared", "deepseek-v3-experts"))
def test_a_key_is_computed_as_by_transformers_or_refused(family: str, tmp_path: Path) -> None:
    source = tiny_dsa.make(family, tmp_path / "source")
    assert wrong(source, tmp_path / "changed", KEYS, read, verdict) == {}


@pytest.mark.slow
@pytest.mark.exhaustive
def test_control_a_rule_that_is_missing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tiny_dsa.make("deepseek", tmp_path / "source")
    checkpoint = changed(source, tmp_path / "changed", is_causal=False)
    assert verdict(checkpoint) is None
    monkeypatch.setattr(config, "unsupported", lambda config: None)
    assert str(verdict(checkpoint)).startswith("is computed otherwise")
