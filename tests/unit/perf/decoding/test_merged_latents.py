"""The measurement of merged latents: rows are checked, on ranks that share the pool and on ranks that do not."""

import json
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="the Triton language is not installed")


from hiscore.parallel.rank import Rank
from perf.decoding import merged_latents
from perf.decoding.missed_latents import Case, time_case
from tests.support.shared_host import one_after_the_other

pytestmark = pytest.mark.slow


def test_a_rehearsal_measures_every_case(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--out", str(tmp_path), "--ranks", "2", "--streams", "1,3", "--missing", "2,64"]
    monkeypatch.setattr(sys, "argv", ["merged_latents", *given])
    assert merged_latents.main() == 0
    cases = json.loads((tmp_path / "merged_latents.json").read_text())["cases"]
    assert [(case["streams"], case["missing"]) for case in cases] == [(1, 2), (1, 8), (3, 2), (3, 8)]
    assert all(case["alone_s"] > 0 and case["merged_s"] > 0 for case in cases)


def test_rows_that_are_not_merged_are_seen() -> None:
    """The control: a rank that gets nothing from the other."""
    first, _ = one_after_the_other(2, last=0)
    with pytest.raises(RuntimeError, match="rank 1 has got other rows"):
        time_case(Rank(torch.device("cpu"), first), Case(2, 8, 5, 16, shared=True))
