"""A forward's FLOP by formula are those that torch counts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from hiscore.models.config import read_architecture
from perf.loadgen.scorer_calls import Shape
from perf.scoring import roofline
from tests.support import tiny_models


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("peers")
    tiny_models.make("qwen3", directory)
    return directory


def test_flop_are_those_that_torch_counts(checkpoint: Path) -> None:
    """Of one prompt through transformers' model, without what that computes needlessly."""
    of, _ = read_architecture(checkpoint)
    n = 20
    model: Any = AutoModelForCausalLM.from_pretrained(
        checkpoint, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode(), FlopCounterMode(display=False) as counter:
        model(torch.zeros(1, n, dtype=torch.long), logits_to_keep=1)
    counted = counter.get_total_flops()
    q = of.heads * of.head_dim
    # It multiplies all pairs, masked or not, all rows of the last layer, and all of the vocabulary.
    masked = of.layers * 4 * q * (n * n - n * (n + 1) // 2)
    last = (n - 1) * 2 * of.hidden_size * (2 * q + 3 * of.intermediate_size)
    last += 4 * q * (n * (n + 1) // 2 - n)
    head = 2 * of.hidden_size * (of.vocab_size - 2)
    # To some versions of transformers rotary angles are a product as well.
    angles = sum(counter.get_flop_counts().get("Qwen3ForCausalLM.model.rotary_emb", {}).values())
    assert angles in (0, 2 * n * (of.head_dim // 2))
    assert counted - masked - last - head - angles == roofline.flop(of, Shape(0, 1, n), 1, 2)


def test_flop_of_a_call_are_those_of_its_tokens_once() -> None:
    of: Any = type("Of", (), {"heads": 2, "kv_heads": 1, "head_dim": 4, "layers": 1, "hidden_size": 8})
    of.intermediate_size = 16
    # One layer: keys and values of all 2 + 3 x 1 tokens, the rest for three items, which see three tokens each.
    rest = 2 * 8 * (2 * 8 + 3 * 16)
    expected = 5 * 2 * 8 * 2 * 4 + 3 * rest + 4 * 8 * 3 * 3 + 2 * 3 * 8 * 2
    assert roofline.flop(of, Shape(2, 3, 1), 1, 2) == expected
    assert roofline.flop(of, Shape(2, 3, 1), 4, 2) == 4 * expected
