"""No key of an encoder's config.json that transformers honours is silently ignored; see that of decoders."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hiscore.models.encoders.encoder import read_encoder_architecture
from hiscore.scoring.pair_scorer import load_encoder_scorer
from hiscore.scoring.scorer import Scorer
from tests.support.config_mutations import keys_of, verdict_of, wrong
from tests.support.pair_truth import PairTruth
from tests.support.scoring import score
from tests.support.strategies import random_tokens
from tests.support.tiny_encoders import ENCODERS, VOCABULARY, make

pytestmark = [pytest.mark.slow, pytest.mark.exhaustive, pytest.mark.usefixtures("short_reprs")]

CALL = random_tokens(np.random.default_rng(0), 13, [7, 3], VOCABULARY)
# One of each family that transformers has.
NAMES = {tiny.model_type: name for name, tiny in reversed(ENCODERS.items()) if tiny.model_type != "new"}
OF_TRAINING = ("dropout", "chunk_size_feed_forward")
"""Parts of keys that change nothing of a forward, and whose odd values transformers refuses."""


def read(checkpoint: Path) -> Any:
    architecture, config = read_encoder_architecture(checkpoint)
    return repr(architecture), getattr(config, "rope_parameters", None)


def load(checkpoint: Path) -> Scorer:
    return load_encoder_scorer(checkpoint, "cpu", "float32", 64)


def truth(checkpoint: Path) -> np.ndarray:
    return PairTruth(checkpoint).scores_of_ids(CALL.query, CALL.items)


def compare(scorer: Scorer, expected: np.ndarray) -> None:
    # float32 sums in another order, as in `test_scorer_encoders`.
    np.testing.assert_allclose(score(scorer, [CALL])[0], expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES.values())
def test_a_key_is_computed_as_by_transformers_or_refused(name: str, tmp_path: Path) -> None:
    source = make(name, tmp_path / "source")
    verdict = partial(verdict_of, load, truth, compare)
    found = wrong(source, tmp_path / "changed", keys_of(NAMES), read, verdict)
    assert {
        changes: said for changes, said in found.items() if not any(part in changes for part in OF_TRAINING)
    } == {}
