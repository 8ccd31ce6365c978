"""Adapters that PEFT wrote are scored as PEFT itself scores them, and as the truth of the other tests does."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from hiscore.scoring.pair_scorer import make_scorer
from hiscore.server.server_resources import ServerResources
from tests.support.adapters import AdaptedTruth, Call, score
from tests.support.client_environment import ROOT, TIMEOUT_S, package_file
from tests.support.comparison import INVARIANCE
from tests.support.scoring import LABELS
from tests.support.strategies import random_tokens
from tests.support.tiny_models import VOCABULARY
from tests.support.truth import softmax

pytestmark = pytest.mark.exhaustive

INVOCATION = [7, 9, 7]


def test_scores_and_the_truth_are_those_of_peft(tmp_path: Path, request_reader: ModuleType) -> None:
    texts = random_tokens(np.random.default_rng(0), 40, [9, 5], VOCABULARY)
    # In the second the invocation comes twice, once across the end of the query.
    query = [*texts.query, 7, 9]
    items = [texts.items[0], [7, *texts.items[1], *INVOCATION, 3], [7, 8]]
    sequences = json.dumps([[*query, *item] for item in items])
    packages = package_file("peft").parent
    script = ROOT / "tests" / "clients" / "adapters.py"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, packages, tmp_path, sequences, json.dumps(INVOCATION)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    logits = {name: np.array(rows) for name, rows in json.loads(done.stdout.splitlines()[-1]).items()}
    directories = {name: tmp_path / name for name in logits}
    truth = AdaptedTruth(tmp_path / "base", directories)
    scorer = make_scorer(
        *(tmp_path / "base", "cpu", "float32", 2_048, None, None, ServerResources()), adapters=directories
    )
    for name, rows in logits.items():
        by_heads = name == "grade"
        call = Call(query, items, [name] * 3, by_heads=by_heads, apply_softmax=True)
        (found,) = score(scorer, [call], request_reader)
        expected = softmax(rows if by_heads else rows[:, LABELS])
        np.testing.assert_allclose(found, expected, atol=INVARIANCE, rtol=0)
        np.testing.assert_allclose(call.expected(truth), expected, atol=INVARIANCE, rtol=0)
        if not by_heads:
            # The control; without its invocation the checkpoint alone computes an item.
            plain = truth.scores([""] * 3, query, items, LABELS, apply_softmax=True)
            differ = np.abs(plain - expected).max(axis=1) > 1e-3
            assert differ.tolist() == [name != "late", True, True]
