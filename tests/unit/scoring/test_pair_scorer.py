"""An encoder's memory plan, and which scorer a checkpoint gets."""

from pathlib import Path

import pytest
import torch

from hiscore.models.encoders.architecture import EncoderArchitecture
from hiscore.models.encoders.encoder import Encoder
from hiscore.models.planned_weights import planned_bytes
from hiscore.scoring.pair_scorer import PairPacking, make_scorer, plan_pairs
from hiscore.server.plan import GIB, MemoryExceeded
from hiscore.server.server_resources import ServerResources
from tests.support import tiny_encoders, tiny_models
from tests.support.weights import held

# bge-reranker-v2-m3: XLM-RoBERTa large with a context of 8,192.
LARGE = EncoderArchitecture(
    family="xlm-roberta", vocab_size=250_002, context_length=8_192, layers=24, hidden_size=1_024,
    intermediate_size=4_096, heads=16, labels=1, norm_eps=1e-5, activation="gelu", head_activation="tanh",
)  # fmt: skip
WEIGHTS = 568_000_000


def test_a_large_reranker_fits_a_small_gpu_and_names_what_does_not() -> None:
    plan = plan_pairs("cuda:0", LARGE, 2, 2 * WEIGHTS, 16_384)
    plan.check(4 * GIB)
    with pytest.raises(MemoryExceeded, match="lower MAX_BATCH_TOKENS or MAX_CONTEXT"):
        plan.check(1 * GIB)
    assert plan_pairs("cuda:0", LARGE, 2, 2 * WEIGHTS, 8_192).total < plan.total
    assert plan_pairs("host", LARGE, 4, 4 * WEIGHTS, 16_384).total < 8 * GIB


@pytest.mark.parametrize("name", tiny_encoders.ENCODERS)
def test_the_plan_holds_all_weights_and_no_more(name: str, tmp_path: Path) -> None:
    """Relative positions are projected, and shared heads repeated, when weights are loaded."""
    checkpoint = tiny_encoders.make(name, tmp_path)
    encoder = Encoder(checkpoint, torch.device("cpu"), torch.float32)
    planned = planned_bytes(lambda device: Encoder(checkpoint, device, torch.float32).weights)
    assert planned == sum(held(encoder.weights).values())


@pytest.mark.parametrize("encodes", [True, False])
def test_a_checkpoint_gets_the_scorer_of_its_kind(encodes: bool, tmp_path: Path) -> None:
    if encodes:
        tiny_encoders.make("bert", tmp_path)
    else:
        tiny_models.make("llama", tmp_path)
    scorer = make_scorer(tmp_path, "cpu", "float32", 64, 0, None, ServerResources())
    assert isinstance(scorer.packing, PairPacking) == encodes
    assert scorer.facts.is_encoder == encodes
