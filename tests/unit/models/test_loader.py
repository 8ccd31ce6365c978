"""Weights: which tensors are read, and what is said of those that are missing, left over or of another shape."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from hiscore.models.config import UnsupportedCheckpoint
from hiscore.models.decoder import Decoder
from hiscore.models.quantization.tensors import ROWS_COMPARED
from hiscore.models.reader import EMBEDDING, HEAD, CheckpointReader
from hiscore.scoring.options import ScoreOptions
from hiscore.scoring.scorer import Scorer
from tests.support.comparison import check
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import VOCABULARY, make
from tests.support.truth import Truth

CALL = random_tokens(np.random.default_rng(0), 5, [3, 1], VOCABULARY)

Tensors = dict[str, Tensor]


def rewritten(checkpoint: Path, change: Callable[[Tensors], None]) -> Path:
    tensors = load_file(checkpoint / "model.safetensors")
    change(tensors)
    save_file(tensors, checkpoint / "model.safetensors", {"format": "pt"})
    return checkpoint


def load(checkpoint: Path) -> Decoder:
    return Decoder(checkpoint, torch.device("cpu"), torch.float32)


def check_against_transformers(checkpoint: Path) -> None:
    truth = Truth(checkpoint)
    expected = truth.scores(CALL.query, CALL.items, LABELS)
    scorer = Scorer(checkpoint, "cpu", "float32", 64, query_cache_bytes=0)
    check(score(scorer, [CALL], ScoreOptions())[0], expected, not truth.is_classifier)


@pytest.fixture
def tied(tmp_path: Path) -> Path:
    return make("llama", tmp_path)


def put_a_changed_head(tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBEDDING].clone()
    # The last row alone: not even a rounding error elsewhere.
    tensors[HEAD][-1] += 1.0
    tensors[HEAD][LABELS[0]] *= 1.5


def test_a_tied_head_that_differs_in_the_file_is_used(tied: Path) -> None:
    rewritten(tied, put_a_changed_head)
    check_against_transformers(tied)
    weights = load(tied).weights
    assert not torch.equal(weights.head, weights.embedding)


def test_control_the_embedding_in_its_place_fails(tied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rewritten(tied, put_a_changed_head)
    monkeypatch.setattr("hiscore.models.loader.CheckpointReader.equal", lambda *_: True)
    with pytest.raises(AssertionError):
        check_against_transformers(tied)


def put_the_same_head(tensors: Tensors) -> None:
    tensors[HEAD] = tensors[EMBEDDING].clone()


def move_to_the_head(tensors: Tensors) -> None:
    tensors[HEAD] = tensors.pop(EMBEDDING)


@pytest.mark.parametrize("change", [lambda tensors: None, put_the_same_head, move_to_the_head])
def test_a_tied_head_and_embedding_share_one_tensor(change: Callable[[Tensors], None], tied: Path) -> None:
    rewritten(tied, change)
    check_against_transformers(tied)
    weights = load(tied).weights
    assert weights.head is weights.embedding


@pytest.mark.parametrize("row", [0, ROWS_COMPARED, 2 * ROWS_COMPARED + 6])
def test_tensors_are_compared_to_their_last_row(row: int, tied: Path) -> None:
    big = torch.arange(2.0 * (2 * ROWS_COMPARED + 7)).reshape(-1, 2)
    other = big.clone()
    other[row, 1] += 1
    rewritten(
        tied, lambda tensors: tensors.update(a=big, b=big.clone(), c=other, d=big[1:].clone(), e=big.half())
    )
    reader = CheckpointReader(tied, torch.device("cpu"), torch.float32, fp8=False)
    assert reader.equal("a", "b")
    assert not any(reader.equal("a", name) for name in ("c", "d", "e"))


def test_a_head_that_is_not_tied_is_read_even_if_it_is_the_same(tmp_path: Path) -> None:
    checkpoint = make("mistral", tmp_path)
    check_against_transformers(checkpoint)
    with pytest.raises(UnsupportedCheckpoint, match=r"no tensor 'lm_head.weight'"):
        load(rewritten(checkpoint, lambda tensors: tensors.pop(HEAD)))


def test_the_head_of_the_causal_lm_that_a_classifier_was_is_ignored(tmp_path: Path) -> None:
    checkpoint = make("qwen3", tmp_path, labels=3)
    rewritten(checkpoint, lambda tensors: tensors.update({HEAD: torch.ones(VOCABULARY, 64)}))
    check_against_transformers(checkpoint)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.pop(EMBEDDING), "no tensor 'model.embed_tokens.weight'"),
        (lambda tensors: tensors.pop("model.norm.weight"), "no tensor 'model.norm.weight'"),
        (
            lambda tensors: tensors.update({HEAD: torch.ones(VOCABULARY + 1, 64)}),
            r"'lm_head.weight' has shape \[501, 64\], the config announces \[500, 64\]",
        ),
        (
            lambda tensors: tensors.update({"model.layers.3.self_attn.k_proj.weight": torch.ones(64, 64)}),
            r"'model.layers.3.self_attn.k_proj.weight' has shape \[64, 64\], the config announces \[32, 64\]",
        ),
        (
            lambda tensors: tensors.update({"model.layers.3.self_attn.q_proj.bias": torch.ones(64)}),
            "holds 1 tensors that a llama model does not have, 'model.layers.3.self_attn.q_proj.bias'",
        ),
    ],
    ids=["no embedding", "no norm", "large head", "wrong projection", "stray bias"],
)
def test_what_does_not_fit_the_config_is_named(
    change: Callable[[Tensors], None], says: str, tied: Path
) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=says):
        load(rewritten(tied, change))
