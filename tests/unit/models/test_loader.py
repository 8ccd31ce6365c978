"""Weights: which tensors are read, and what is said of those that are missing, left over or of another shape."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor

from hiscore.models.decoder import Decoder
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.quantization.tensors import ROWS_COMPARED
from hiscore.models.reader import EMBEDDING, HEAD, CheckpointReader
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from tests.support.checkpoints import edited_config, edited_tensors
from tests.support.comparison import check
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import VOCABULARY, make
from tests.support.truth import Truth

CALL = random_tokens(np.random.default_rng(0), 5, [3, 1], VOCABULARY)

Tensors = dict[str, Tensor]


def rewritten(checkpoint: Path, change: Callable[[Tensors], None]) -> Path:
    with edited_tensors(checkpoint) as tensors:
        change(tensors)
    return checkpoint


def load(checkpoint: Path) -> Decoder:
    return Decoder(checkpoint, torch.device("cpu"), torch.float32)


def check_against_transformers(checkpoint: Path) -> None:
    truth = Truth(checkpoint)
    expected = truth.scores(CALL.query, CALL.items, LABELS)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 64, query_cache_bytes=0)
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


def test_a_text_tower_saved_alone_may_keep_its_names(tmp_path: Path) -> None:
    """Transformers saves it under those that it was loaded from."""

    def rename(tensors: Tensors) -> None:
        for name in [name for name in tensors if name.startswith("model.")]:
            tensors[name.replace("model.", "model.language_model.", 1)] = tensors.pop(name)

    check_against_transformers(rewritten(make("qwen3-hybrid", tmp_path), rename))


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
    reader = CheckpointReader(tied, torch.device("cpu"), torch.float32)
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


def ones(name: str, *shape: int) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: torch.ones(shape)})


KEYS, BIAS = "model.layers.3.self_attn.k_proj.weight", "model.layers.3.self_attn.q_proj.bias"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda tensors: tensors.pop(EMBEDDING), "no tensor 'model.embed_tokens.weight'"),
        (lambda tensors: tensors.pop("model.norm.weight"), "no tensor 'model.norm.weight'"),
        (
            ones(HEAD, VOCABULARY + 1, 64),
            rf"'{HEAD}' has shape \[501, 64\], the config announces \[500, 64\]",
        ),
        (ones(KEYS, 64, 64), rf"'{KEYS}' has shape \[64, 64\], the config announces \[32, 64\]"),
        (ones(BIAS, 64), f"holds 1 tensors that a llama model does not have, '{BIAS}'"),
    ],
    ids=["no embedding", "no norm", "large head", "wrong projection", "stray bias"],
)
def test_what_misfits_the_config_is_named(change: Callable[[Tensors], None], says: str, tied: Path) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=f"{says}[^(]*$"):
        load(rewritten(tied, change))
    if "holds" in says or "no tensor" in says:
        # Code of the checkpoint's own may be why.
        with edited_config(tied) as config:
            config["auto_map"] = {"AutoModel": "own.Class"}
        with pytest.raises(UnsupportedCheckpoint, match=rf"{says}.*\(its auto_map names .* 'own.Class'"):
            load(tied)


DTYPES = ("F32", "F16", "BF16", "F64", "F8_E4M3", "I64", "I8", "U8", "BOOL", "C64", "F4", "odd", None, 3)
HEADER_LENGTH = 8


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make("llama", tmp_path_factory.mktemp("small"))


@pytest.fixture
def copy(small: Path, tmp_path: Path) -> Path:
    return shutil.copytree(small, tmp_path / "copy")


def load_or_refuse(checkpoint: Path) -> None:
    """Only these two: a file that is none must not end in another exception, or in a crash."""
    with suppress(UnsupportedCheckpoint):
        load(checkpoint)


RELAXED = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.mark.slow
@RELAXED
@given(data=st.data())
def test_a_damaged_file_is_refused_or_loads(data: st.DataObject, small: Path, copy: Path) -> None:
    """Bytes changed in the header, or the end missing."""
    content = bytearray((small / "model.safetensors").read_bytes())
    header = HEADER_LENGTH + int.from_bytes(content[:HEADER_LENGTH], "little")
    for place in data.draw(st.lists(st.integers(0, header - 1), max_size=4)):
        content[place] = data.draw(st.integers(0, 255))
    kept = data.draw(st.integers(0, len(content)) | st.just(len(content)))
    (copy / "model.safetensors").write_bytes(content[:kept])
    load_or_refuse(copy)
    if kept < len(content):
        with pytest.raises(UnsupportedCheckpoint, match="cannot be read as safetensors"):
            load(copy)


@pytest.mark.slow
@RELAXED
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.lists(st.integers(-1, 2**40), max_size=3) | st.just([64]) | st.just([500, 64]) | st.none(),
    offsets=st.lists(st.integers(-1, 2**62), min_size=2, max_size=2) | st.none(),
    name=st.sampled_from(["model.norm.weight", EMBEDDING, HEAD, "__metadata__", "other"]),
)
def test_a_header_of_any_content_is_refused_or_loads(
    dtype: object, shape: object, offsets: object, name: str, small: Path, copy: Path
) -> None:
    content = (small / "model.safetensors").read_bytes()
    end = HEADER_LENGTH + int.from_bytes(content[:HEADER_LENGTH], "little")
    header = json.loads(content[HEADER_LENGTH:end])
    old = header.get(name, {"data_offsets": [0, 0]})
    header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets or old.get("data_offsets")}
    text = json.dumps(header).encode()
    (copy / "model.safetensors").write_bytes(
        len(text).to_bytes(HEADER_LENGTH, "little") + text + content[end:]
    )
    load_or_refuse(copy)


def test_an_index_whose_shard_is_missing_or_lacks_a_tensor_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy / "1.safetensors")
    index = copy / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {EMBEDDING: "1.safetensors", "a": "2.safetensors"}}))
    with pytest.raises(UnsupportedCheckpoint, match=r"2\.safetensors' cannot be read as safetensors"):
        load(copy)
    save_file({"a": torch.ones(1)}, copy / "2.safetensors")
    with pytest.raises(UnsupportedCheckpoint, match="holds 1 tensors that a llama model does not have, 'a'"):
        load(copy)
    index.write_text("{}")
    with pytest.raises(UnsupportedCheckpoint, match="is not an index of safetensors files"):
        load(copy)
    index.unlink()
    with pytest.raises(UnsupportedCheckpoint, match=r"has neither 'model\.safetensors' nor"):
        load(copy)
