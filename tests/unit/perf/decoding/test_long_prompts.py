"""The grid of long prompts: both arms in one pool, beyond which one waits and the other selects."""

import json
import sys
from pydoc_data.topics import topics

import pytest
from transformers import AutoTokenizer

from perf.decoding import long_prompts
from perf.decoding.engine_load import Bench
from tests.support import decoding, tiny_models, tiny_tokenizers

SMALL = "--geometry tiny --fit 3 --prompt 480 --tokens 16 --sizes 64:128:0 --host-gib 0.1 --rounds 1"


@pytest.mark.slow
def test_a_load_beyond_the_pool_waits_densely_and_selects_under_auto(monkeypatch, tmp_path) -> None:
    command = f"long_prompts --out {tmp_path} --loads 1,6 {SMALL}"
    monkeypatch.setattr(sys, "argv", command.split())
    assert long_prompts.main() == 0
    results = json.loads((tmp_path / "decode_long_prompts.json").read_text())
    alone, beyond = results["loads"].values()
    assert alone["auto"]["hit_rate"] == alone["auto"]["preemptions"] == 0
    assert beyond["auto"]["hit_rate"] > 0
    assert beyond["auto"]["preemptions"] > 0
    assert 1 < beyond["dense"]["rows_per_step"] <= 3
    ratio = beyond["auto"]["tokens_per_s"] / beyond["dense"]["tokens_per_s"]
    assert beyond["tokens_per_s_ratio"] == pytest.approx(ratio)


@pytest.mark.slow
def test_a_trained_model_gets_text_and_as_much_context_as_that_takes(monkeypatch, tmp_path) -> None:
    checkpoint = decoding.checkpoint("llama", tmp_path, max_position_embeddings=256)
    tiny_tokenizers.save(tiny_tokenizers.train(tiny_tokenizers.smollm2(), tiny_models.VOCABULARY), checkpoint)
    prompts = []
    cut = Bench._prompts
    monkeypatch.setattr(Bench, "_prompts", lambda *of: prompts.append(cut(*of)) or prompts[-1])
    command = (
        f"long_prompts --out {tmp_path} --loads 6 --checkpoint {checkpoint} --fit 3 --prompt 480 --tokens 16 "
        "--sizes 64:128:0 --host-gib 0.1"
    )
    monkeypatch.setattr(sys, "argv", command.split())
    assert long_prompts.main() == 0
    results = json.loads((tmp_path / "decode_long_prompts.json").read_text())
    assert results["model"] == str(checkpoint)
    assert results["loads"]["6"]["auto"]["hit_rate"] > 0
    text = "\n\n".join(topics.values())
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    whole = tokenizer.decode(tokenizer(text, add_special_tokens=False).input_ids)
    assert {len(prompt) for of in prompts for prompt in of} == {480}
    assert all(tokenizer.decode(prompt[1:-1]).strip("\ufffd") in whole * 2 for of in prompts for prompt in of)
