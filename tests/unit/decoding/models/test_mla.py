"""Decoding with an indexer while most of the cache is on the host, against transformers' cached decode."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from hiscore.decoding.sparse import residency
from tests.support import tiny_dsa
from tests.support.dsa_sequences import CAPACITY, LENGTHS, STEPS, Sequences, prompts

pytestmark = pytest.mark.slow  # whole models

# As in test_dsa_decoder.
EXACT = 1e-9


@torch.inference_mode()
def largest_error(checkpoint: Path) -> tuple[float, Sequences]:
    """Greedy decoding of all prompts, compared with transformers fed the same tokens."""
    model, sequences = tiny_dsa.reference(checkpoint, torch.float64), Sequences(checkpoint, prompts())
    kept = [DynamicCache(config=model.config) for _ in LENGTHS]
    expected = [
        model(ids[None], past_key_values=cache, use_cache=True).logits[0, -1]
        for ids, cache in zip(prompts(), kept, strict=True)
    ]
    actual, error = torch.stack(sequences.logits), 0.0
    for _ in range(STEPS):
        error = max(error, float((actual - torch.stack(expected)).abs().nan_to_num(1e9).max()))
        fed = torch.stack(expected).argmax(dim=1)
        actual = sequences.decode(fed, [0, 1, 2])
        expected = [
            model(token[None, None], past_key_values=cache, use_cache=True).logits[0, -1]
            for token, cache in zip(fed, kept, strict=True)
        ]
    return error, sequences


@pytest.mark.parametrize("name", ["deepseek", "glm", "glm-shared", "glm-alternating"])
def test_offloaded_decode_matches_transformers_cached_decode(name: str, tmp_path: Path) -> None:
    error, sequences = largest_error(tiny_dsa.make(name, tmp_path))
    assert error < EXACT
    assert int(sequences.cache.misses) > 200
    assert int(sequences.cache.hits) > int(sequences.cache.misses)


def test_a_copy_left_out_is_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Control: the tables say that a row was copied, but it was not."""
    monkeypatch.setattr(residency, "copy_pages", lambda *_: None)
    error, _ = largest_error(tiny_dsa.make("glm-shared", tmp_path))
    assert error > 1e-3


@torch.inference_mode()
def test_where_rows_come_from_and_who_else_decodes_changes_no_bit(tmp_path: Path) -> None:
    """All from the host at every step, and each sequence alone: only what is selected counts."""
    checkpoint = tiny_dsa.make("glm-shared", tmp_path)
    warm, cold, alone = (Sequences(checkpoint, prompts()) for _ in range(3))
    fed = torch.arange(3)
    for _ in range(STEPS):
        actual = warm.decode(fed, [0, 1, 2])
        assert torch.equal(actual, cold.decode(fed, [0, 1, 2], cold=True))
        one = torch.cat([alone.decode(fed[seq_index, None], [seq_index]) for seq_index in range(3)])
        # Matrix products over other numbers of rows add in another order; a wrong row among those seen is 1e-3.
        assert (actual - one).abs().max() < 1e-11
        fed = actual.argmax(dim=1)
    assert int(cold.cache.misses) > 2 * int(warm.cache.misses)


@pytest.fixture
def everything(tmp_path: Path) -> Callable[[Tensor], Tensor]:
    """A checkpoint of the same weights whose indexer selects everything: ids to the last token's logits."""
    model = tiny_dsa.reference(
        tiny_dsa.make("deepseek", tmp_path / "wide", index_topk=CAPACITY), torch.float64
    )
    return lambda ids: model(ids[None]).logits[0, -1]


@torch.inference_mode()
def test_a_full_sequence_attends_to_everything(
    everything: Callable[[Tensor], Tensor], tmp_path: Path
) -> None:
    """And its neighbours' bits do not change."""
    checkpoint = tiny_dsa.make("deepseek", tmp_path)
    mixed, plain = Sequences(checkpoint, prompts(), full=0), Sequences(checkpoint, prompts())
    ids, fed = prompts()[0], torch.tensor([7, 8, 9])
    for _ in range(5):
        actual, usual = mixed.decode(fed, [0, 1, 2]), plain.decode(fed, [0, 1, 2])
        ids = torch.cat((ids, fed[:1]))
        assert (actual[0] - everything(ids)).abs().max() < EXACT
        assert torch.equal(actual[1:], usual[1:])
        # Control: with its selection the sequence gives other tokens.
        assert (actual[0] - usual[0]).abs().max() > 1e-3
        fed = usual.argmax(dim=1)


@torch.inference_mode()
def test_dense_layers_attend_to_everything(everything: Callable[[Tensor], Tensor], tmp_path: Path) -> None:
    """All layers dense: `dense_kv` holds the whole sequence, and no buffer holds any of it."""
    layers = frozenset(range(tiny_dsa.SIZES["num_hidden_layers"]))
    offloaded = Sequences(tiny_dsa.make("deepseek", tmp_path), prompts(), dense=layers)
    sequences, fed = prompts(), torch.tensor([7, 8, 9])
    for _ in range(5):
        actual = offloaded.decode(fed, [0, 1, 2])
        sequences = [torch.cat((ids, token[None])) for ids, token in zip(sequences, fed, strict=True)]
        for logits, ids in zip(actual, sequences, strict=True):
            assert (logits - everything(ids)).abs().max() < EXACT
        fed = actual.argmax(dim=1)
    assert int(offloaded.cache.misses) == 0
