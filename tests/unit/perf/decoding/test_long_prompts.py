"""The grid of long prompts: both arms in one pool, beyond which one waits and the other selects."""

import json
import sys

import pytest

from perf.decoding import long_prompts

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
