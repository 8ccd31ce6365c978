"""Decoding on several ranks: every sequence gets the tokens that it gets on one."""

import json
import re
import shutil
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from hiscore.decoding.interface.worker import Worker
from hiscore.decoding.worker.parallel_worker import ParallelWorker
from hiscore.models.config import read_architecture
from hiscore.models.families import DSA_FAMILIES
from hiscore.parallel.leader import Ranks
from hiscore.parallel.shard import Shard
from tests.support import decode_rank_work, rank_work
from tests.support.decode_client import serving
from tests.support.decoding import build, checkpoint
from tests.support.tiers import first_of
from tests.unit.decoding.worker.test_worker_engine import Call, call

pytestmark = pytest.mark.slow

COUNT = 10
# Family; selector, tokens selected, tokens in the buffer.
SETTINGS = {
    "dense": ("mistral", ("dense", 16, 24)),
    "quest": ("qwen3", ("quest", 96, 96)),
    "exact": ("llama-biased", ("exact", 16, 24)),
    "windows": ("gemma3", ("quest", 96, 96)),
    "experts": ("qwen3-moe", ("exact", 16, 24)),
    "sinks": ("gpt-oss", ("exact", 16, 24)),
    "wide norms": ("olmo2", ("exact", 16, 24)),
    "norms by head": ("command-r-plus", ("exact", 16, 24)),
    "latents": ("deepseek", ("dsa", 16, 24)),
    "latents, experts": ("deepseek-experts", ("dsa", 16, 24)),
    "latents, shared selections": ("glm-alternating", ("dsa", 16, 24)),
    "latents, GLM experts": ("glm-experts", ("dsa", 16, 24)),
    "latents, dense": ("glm", ("dense", 16, 24)),
}
FOR_FOUR = (
    *("dense", "quest", "exact", "windows", "sinks", "wide norms", "norms by head"),
    *("experts", "latents, shared selections", "latents, GLM experts"),
)
"""What four ranks do that two do not: several have the same head of keys and values, its norm and its selections.

Of the others, `test_scorer_ranks` and `test_sharding` cover each family's weights.
"""
CALLS: list[Call] = [call(number) for number in range(COUNT)]
"""Short and long, greedy and sampled."""
FEWER = CALLS[:6]
"""Some of every kind, and still more than run at once: a step on four ranks takes long on few cores."""


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    directory = tmp_path_factory.mktemp("decoded")
    return {name: checkpoint(family, directory) for name, (family, _) in SETTINGS.items()}


def tokens(worker: Worker, calls: Sequence[Call] = CALLS) -> list[list[int]]:
    """The tokens of calls that run together; preempted now and then, since only four run at once."""
    with serving(worker, quantum=6) as client:
        outcomes = [client.submit(**each) for each in calls]
        client.wait(outcomes)
    assert client.failures == []
    assert [outcome.end for outcome in outcomes] == ["length"] * len(calls)
    return [outcome.tokens for outcome in outcomes]


def together(
    ranks: Ranks, path: Path, name: str, late: int | None = None, deaf: bool = False, **settings: Any
) -> ParallelWorker:
    given = SETTINGS[name][1]
    ranks.prepare(
        partial(decode_rank_work.build_on, path=path, late=late, deaf=deaf, given=given, **settings)
    )
    return ParallelWorker(ranks)


@cache
def alone(path: Path, name: str, count: int = COUNT, **settings: Any) -> list[list[int]]:
    return tokens(build(path, *SETTINGS[name][1], dtype=torch.float64, **settings), CALLS[:count])


def with_a_head_for_each_rank(path: Path, ranks: int) -> Path:
    """The same model as one rank of several sees it: heads of keys and values that several ranks have, repeated.

    Pages are selected for each of those heads: on a rank, by its own heads of queries alone.
    """
    config = json.loads((path / "config.json").read_text())
    of_texts = config.get("text_config", config)
    if config["model_type"] in DSA_FAMILIES:
        return path  # every rank has the latents, and selects as all do
    copies = Shard(0, ranks).copies(of_texts["num_key_value_heads"])
    if copies == 1:
        return path
    target = Path(shutil.copytree(path, path.with_name(f"{path.name}-{copies}"), dirs_exist_ok=True))
    whole, _ = read_architecture(path)
    of_texts["num_key_value_heads"] *= copies
    (target / "config.json").write_text(json.dumps(config))
    tensors = load_file(path / "model.safetensors")
    for name, tensor in tensors.items():
        by_rows = len(tensor) == whole.kv_heads * whole.head_dim
        if re.search(r"\.[kv]_proj\.", name) or (name.endswith("k_norm.weight") and by_rows):
            by_head = tensor.unflatten(0, (whole.kv_heads, whole.head_dim))
            tensors[name] = by_head.repeat_interleave(copies, dim=0).flatten(0, 1).contiguous()
        elif name.endswith("k_norm.weight") and tensor.ndim == 2:
            tensors[name] = tensor.repeat_interleave(copies, dim=0)
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    return target


def check(name: str, ranks: Ranks, checkpoints: dict[str, Path], calls: Sequence[Call] = CALLS) -> None:
    one = with_a_head_for_each_rank(checkpoints[name], ranks.rank.shard.ranks)
    expected = alone(one, name, len(calls))
    assert tokens(together(ranks, checkpoints[name], name), calls) == expected
    # The calls are not all alike, or their tokens would say nothing.
    assert len({tuple(each) for each in expected}) == len(calls)


@pytest.mark.parametrize("name", first_of(*SETTINGS))
def test_tokens_are_those_of_one_rank(name: str, ranks: Ranks, checkpoints: dict[str, Path]) -> None:
    check(name, ranks, checkpoints)


@pytest.mark.parametrize("late", first_of(0, 1))
@pytest.mark.parametrize("name", ["exact", "latents, shared selections"])
def test_copies_that_are_late_on_one_rank_change_no_token(
    name: str, late: int, ranks: Ranks, checkpoints: dict[str, Path]
) -> None:
    path = checkpoints[name]
    found = tokens(together(ranks, path, name, late))
    assert found == alone(with_a_head_for_each_rank(path, ranks.rank.shard.ranks), name)


@pytest.mark.parametrize("name", ["exact", "latents, shared selections"])
@pytest.mark.exhaustive
def test_a_rank_that_waits_for_no_copy_is_seen(name: str, ranks: Ranks, checkpoints: dict[str, Path]) -> None:
    """The control: on one rank, rows of the ring are overwritten on their way to the host."""
    path = checkpoints[name]
    long = [{**each, "max_tokens": 60, "sparse": True} for each in CALLS[:4]]
    expected = tokens(together(ranks, path, name, ring=1), long)
    # Other tokens, or numbers that are not finite: memory that was never written is NaN.
    with pytest.raises(AssertionError):
        assert tokens(together(ranks, path, name, ring=1, late=1, deaf=True), long) == expected


@pytest.mark.parametrize("name", ["exact", "latents, experts"])
@pytest.mark.exhaustive
def test_without_a_rank_s_part_they_differ(name: str, ranks: Ranks, checkpoints: dict[str, Path]) -> None:
    path = checkpoints[name]
    expected = tokens(together(ranks, path, name))
    ranks.do(partial(rank_work.add_nothing, which=1))
    try:
        assert tokens(together(ranks, path, name)) != expected
    finally:
        ranks.do(rank_work.add_again)


@pytest.mark.exhaustive
@pytest.mark.parametrize("ranks", [4], indirect=True)
@pytest.mark.parametrize("name", FOR_FOUR)
def test_so_are_those_of_four(name: str, ranks: Ranks, checkpoints: dict[str, Path]) -> None:
    check(name, ranks, checkpoints, FEWER)


def test_every_call_of_a_worker_is_passed_on() -> None:
    """A method that the interface gets and this class does not have would silently do nothing."""
    methods = {name for name in vars(Worker) if not name.startswith("_") and callable(vars(Worker)[name])}
    assert methods >= {"prefill", "step", "release"}
    assert methods <= set(vars(ParallelWorker))
