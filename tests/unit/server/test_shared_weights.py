"""Weights of two processes in one memory: the same bits, loaded once; and what happens where that fails."""

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hiscore.models.decoder import Decoder, weights_key
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.server import shared_weights
from hiscore.server.server_resources import Instance, ServerResources, has_sharers
from hiscore.server.shared_weights import SharedWeights
from tests.support.scoring import score
from tests.support.strategies import random_tokens
from tests.support.tiers import first_of
from tests.support.tiny_models import FAMILIES, VOCABULARY

CPU = torch.device("cpu")


@pytest.mark.parametrize("family", first_of(*FAMILIES, others=pytest.mark.slow))
def test_mapped_weights_have_the_bits_of_loaded_ones(family: str, checkpoints: Any, tmp_path: Path) -> None:
    checkpoint, _ = checkpoints(family)
    call = [random_tokens(np.random.default_rng(0), 13, [1, 7, 20], VOCABULARY)]
    found = []
    for weights in ({}, {"weights": SharedWeights(tmp_path)}, {"weights": SharedWeights(tmp_path)}):
        resources = ServerResources(**weights)
        scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 64, 0, resources=resources)
        found += score(scorer, call, ScoreOptions())
    assert all(np.array_equal(found[0], other) for other in found[1:])


def test_the_second_loads_nothing_and_sees_what_the_first_sees(checkpoints: Any, tmp_path: Path) -> None:
    checkpoint, _ = checkpoints("qwen3")
    loads = []

    def load() -> Any:
        loads.append(1)
        return Decoder(checkpoint, CPU, torch.bfloat16).weights

    first, second = (SharedWeights(tmp_path).load("same", load) for _ in range(2))
    assert len(loads) == 1
    first.layers[1].qkv.weight[3, 5] = 42.0
    assert second.layers[1].qkv.weight[3, 5] == 42.0
    # Tied weights stay one tensor.
    assert second.head.data_ptr() == second.embedding.data_ptr()
    # What differs is not shared.
    SharedWeights(tmp_path).load("other", load)
    assert len(loads) == 2


def test_keys_tell_weights_apart(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for directory in (first, second):
        directory.mkdir()
        (directory / "model.safetensors").write_bytes(b"")
    keys = [
        weights_key(checkpoint, torch.device(device), dtype, fp8)
        for checkpoint in (first, second)
        for device in ("cpu", "cuda:0", "cuda:1")
        for dtype in (torch.float32, torch.bfloat16)
        for fp8 in (False, True)
    ]
    # A checkpoint that has been written anew while a server has the old one in memory.
    os.utime(first / "model.safetensors", (1, 1))
    keys.append(weights_key(first, CPU, torch.float32))
    assert keys[-1] == weights_key(first, CPU, torch.float32)
    assert len(set(keys)) == len(keys)
    assert not any("/" in key or ":" in key for key in keys)


READER = """
import sys, os, torch
from pathlib import Path
from hiscore.server.shared_weights import SharedWeights
os.getppid = lambda: int(sys.argv[2])
def never(): raise AssertionError("loaded once more")
shared = SharedWeights(Path(sys.argv[1]))
weights = shared.load("key", never)
print(float(weights["a"].sum()), flush=True)
sys.stdin.readline()
"""


@pytest.mark.slow
@pytest.mark.parametrize("in_cuda", [False, True])
def test_another_process_maps_them_and_the_owner_waits_for_it(
    in_cuda: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CUDA's memory goes with its owner, and nobody could map a file in memory from then on."""
    if in_cuda:
        monkeypatch.setattr(shared_weights._Export, "in_memory_file", False)
    owner = SharedWeights(tmp_path)
    numbers = torch.arange(1_000.0)
    mine = owner.load("key", lambda: {"a": numbers, "view": numbers[10:20:2]})
    assert mine["view"].tolist() == numbers[10:20:2].tolist()
    command = [sys.executable, "-c", READER, str(tmp_path), str(os.getppid())]
    reader = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert reader.stdout is not None
    assert reader.stdin is not None
    assert float(reader.stdout.readline()) == float(numbers.sum())
    ended = []

    def end(seconds: float) -> None:
        if reader.poll() is None:
            assert reader.stdin is not None
            reader.stdin.close()
            reader.wait()
        ended.append(seconds)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shared_weights.time, "sleep", end)
        owner.close()
    assert len(ended) == 1, "it waited while the reader lived, and no longer"
    end(0.0)
    assert reader.returncode == 0


def test_what_cannot_be_mapped_is_loaded_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    SharedWeights(tmp_path).load("key", lambda: (torch.zeros(3),))

    def refuse(self: Any, pid: Any) -> Any:
        raise RuntimeError("CUDA error: operation not supported")

    monkeypatch.setattr(shared_weights._Mapped, "persistent_load", refuse)
    (found,) = SharedWeights(tmp_path).load("key", lambda: (torch.ones(3),))
    assert found.tolist() == [1, 1, 1]
    assert "a copy is loaded: CUDA error: operation not supported" in caplog.text


def test_a_model_whose_load_failed_leaves_nothing_behind(tmp_path: Path) -> None:
    def fail() -> Any:
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        SharedWeights(tmp_path).load("key", fail)
    (found,) = SharedWeights(tmp_path).load("key", lambda: (torch.ones(3),))
    assert found.tolist() == [1, 1, 1]


@pytest.mark.parametrize(
    ("others", "shares"),
    [(("decode",), True), (("scorer_de", "tokenizer"), True), (("score", "tokenizer"), False), ((), False)],
)
def test_weights_are_shared_where_another_model_may_have_them(
    others: tuple[str, ...], shares: bool, tmp_path: Path
) -> None:
    """Alone, a model would only copy its weights."""
    for name in ("scorer", *others):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.pbtxt").touch()
    assert has_sharers(tmp_path / "models/scorer") is shares
    resources = ServerResources.in_server(tmp_path, "scorer", os.getppid(), Instance(), shares, os.getpid())
    assert resources.weights.shares is shares
    assert bool(resources.weights_line(5, "key").shared) is shares


def test_what_is_left_for_the_other_model_is_places_and_no_numbers(checkpoints: Any, tmp_path: Path) -> None:
    """The pickle holds places, no numbers."""
    SharedWeights(tmp_path).load("key", lambda: (torch.zeros(10**6),))
    (export,) = tmp_path.glob("weights-*/key")
    assert export.stat().st_size < 10_000
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads(export.read_bytes())
