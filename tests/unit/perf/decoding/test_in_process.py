"""The parts of decode's measurements that need no GPU: shapes, floors, budgets, gaps, tasks, reports."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from hiscore.decoding.kv_cache.sizing import Memory, plan_cache
from hiscore.settings import CacheSettings
from perf.decoding import engine_load as decode_load
from perf.decoding.comparison_groups import groups
from perf.decoding.device_bytes import model_shape, request_bytes, slot_bytes
from perf.decoding.engine_load import PLENTY, Arm, Bench, Load, Run, between, build_worker, shared_weights
from perf.decoding.memory_floor import floor_ms
from perf.decoding.oversubscribed import budget
from perf.decoding.time_per_token import summarise
from perf.decoding.worker_driver import Driver
from perf.loadgen import decode_clients as decode_streams
from perf.models import random_checkpoint as geometry
from perf.models.geometries import GEOMETRIES
from perf.quality.selection import Variant, divergence, measure, variants
from perf.quality.selection_report import markdown
from perf.quality.selection_tasks import QUESTION, Task, continuations, needles

RUN = Run(2.0, 2.0, 3.0, 10.0, 1.0, 100.0, 1.9, 110.0, 5.0, 0.9, 0.1, 0.5, 0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    with shared_weights():
        yield geometry.write_config("tiny", tmp_path_factory.mktemp("tiny"), context=512)


@pytest.mark.parametrize("name", ["tiny", "tiny-dsa"])
def test_weights_in_memory_are_those_of_the_file(name: str, tmp_path) -> None:
    """The strict loader reads all of both; a seed apart they differ."""
    from hiscore.models.decoder import Decoder
    from hiscore.models.deepseek.decoder import DsaDecoder

    kind = DsaDecoder if name == "tiny-dsa" else Decoder
    geometry.write(name, tmp_path)
    loaded = kind(tmp_path, torch.device("cpu"), torch.float32).weights.embedding
    with geometry.in_memory("cpu"):
        drawn = kind(tmp_path, torch.device("cpu"), torch.float32).weights.embedding
    with geometry.in_memory("cpu", seed=1):
        other = kind(tmp_path, torch.device("cpu"), torch.float32).weights.embedding
    assert torch.equal(loaded, drawn)
    assert not torch.equal(drawn, other)


def test_a_floor_counts_what_a_step_reads() -> None:
    """Qwen3-8B has 8.19e9 weights, of which the embedding (0.62e9) is not read; a token is 147,456 bytes."""
    assert geometry.read_bytes(GEOMETRIES["qwen3-8b"]) == pytest.approx(2 * (8.19e9 - 0.622e9), rel=1e-3)
    assert geometry.read_bytes(GEOMETRIES["qwen3-0.6b"]) == pytest.approx(2 * 0.596e9, rel=1e-3)
    at = {length: floor_ms(GEOMETRIES["qwen3-8b"], length, 1e12) for length in (0, 1_000)}
    assert at[1_000] - at[0] == pytest.approx(147_456 * 1_000 / 1e12 * 1e3)


def test_bytes_of_a_request_are_what_a_plan_allocates_for_it() -> None:
    model = model_shape(GEOMETRIES["qwen3-0.6b"], 32_768)
    settings = CacheSettings(selector="quest")
    one = request_bytes(model, settings, 32_768)
    shape, cache_config = plan_cache(settings, model, Memory(PLENTY, PLENTY, 1), torch.bfloat16, 1)
    allocated = replace(shape, device_pages=cache_config.lru_pages + cache_config.ring_pages).bytes(
        torch.bfloat16
    )
    assert one == {name: allocated[name] for name in one}
    # By hand: two dense layers whole, 4,096 tokens of 26 others.
    assert one["dense_kv"] == 2 * 32_768 * 4_096
    assert one["buffer"] == 26 * 4_096 * 4_096


@pytest.mark.parametrize("fit", [1, 3])
def test_a_budget_holds_so_many_dense_streams_and_no_more(fit: int) -> None:
    load = Load(5 * fit, 1_000, 24)
    config = GEOMETRIES["qwen3-0.6b"]
    model = model_shape(config, load.context)
    memory = Memory(PLENTY, budget(config, load, fit), load.streams)
    _, planned = plan_cache(CacheSettings(selector="dense"), model, memory, decode_load.dtype(), 1)
    assert planned.host_pages == fit * load.context // planned.page_size
    assert slot_bytes(model) == 114_688


def test_gaps_are_taken_while_all_streams_run() -> None:
    gaps = between([[0.0, 1.0, 2.0, 3.0], [1.5, 2.5, 7.0]])
    assert sorted(gaps.tolist()) == [1.0, 1.0]


def test_flow_counts_no_gap_between_two_streams_and_none_from_before() -> None:
    seen = decode_streams._Seen([0.0, 1.0, 2.0, 9.0, 10.0], [1, 1, 2, 3, 4], [False, True, True, False, True])
    flow = decode_streams.flow_of([seen], 0.5, 10.5)
    assert flow.tokens_per_s == pytest.approx(10 / 10)
    assert flow.gap_worst == 1_000.0
    with pytest.raises(RuntimeError, match="no stream went on"):
        decode_streams.flow_of([seen], 20.0, 30.0)


def test_ratios_are_taken_within_a_round() -> None:
    slow = [replace(RUN, tpot_ms=value) for value in (2.0, 4.0, 8.0)]
    fast = [replace(RUN, tpot_ms=value) for value in (1.0, 2.0, 4.0)]
    found = summarise({"a": slow, "b": fast}, {"a": {}, "b": {}}, {"a": 0.0, "b": 0.0})
    assert found["b"]["ratio"] == {"median": 0.5, "low": 0.5, "high": 0.5}
    assert found["b"]["tpot_ms"] == 2.0


@pytest.mark.parametrize("family", ["grouped", "latent"])
@pytest.mark.parametrize("prompt", [300, 8_192])
def test_all_arms_have_settings_that_hold(family: str, prompt: int) -> None:
    for arms in groups(family, Load(3, prompt, 20)).values():
        assert len({arm.name for arm in arms}) == len(arms)
        for arm in arms:
            assert CacheSettings(**arm.settings).selector == arm.settings["selector"]


def test_a_bench_measures_a_load(tiny) -> None:
    load = Load(3, 100, 12)
    bench = Bench(
        tiny, Arm("quest", {"selector": "quest", "sparse_top_k": 96, "device_buffer_size": 96}), load
    )
    try:
        run = bench.run()
        assert sum(bench.device_bytes.values()) > 0
    finally:
        bench.close()
    assert 0 < run.tpot_ms <= run.itl_p99_ms
    assert run.rows_per_step <= load.streams
    assert 0 <= run.hit_rate <= 1
    assert not math.isnan(run.tokens_per_s)


def test_an_arm_without_backup_leaves_the_host_empty(tiny) -> None:
    """The prompt still goes there; with backup, the generated tokens do as well."""
    full = {}
    for left_out in ("", "backup"):
        arm = Arm("dense", {"selector": "dense"}, left_out)
        worker = build_worker(tiny, arm, Memory(PLENTY, PLENTY, 1))
        driver = Driver.of_random(worker, tiny, [32])
        driver.steps(5)
        full[left_out] = int((worker._cache.host_kv[0, 1, 0, 0].abs().sum(dim=-1) > 0).sum())
    assert full == {"": 5, "backup": 0}


def test_fed_tokens_are_judged_as_a_prefill_would(tiny) -> None:
    """Steps fed with a text's tokens give the logits of that text prefilled; of another text they do not."""
    rng = np.random.default_rng(0)
    text = rng.integers(0, 512, 70).astype(np.int32)
    arm = Arm("dense", {"selector": "dense"})

    def logits(prompt: int) -> torch.Tensor:
        driver = Driver(build_worker(tiny, arm, Memory(PLENTY, PLENTY, 1)), [text[:prompt]], 70 - prompt)
        for at in range(prompt, 70):
            driver.feed(text[at : at + 1])
        return driver.logits[0]

    # Float32 sums in another order, of logits below 1.
    assert torch.allclose(logits(40), logits(70), rtol=0, atol=1e-4)
    text[30] += 1
    changed = logits(40)
    text[30] -= 1
    assert not torch.allclose(changed, logits(70), rtol=0, atol=1e-4)


def test_tasks_say_what_is_judged() -> None:
    def encode(text: str) -> list[int]:
        return [ord(letter) for letter in text]

    tasks = needles("x" * 500, encode, [200, 400])
    assert [len(task.prompt) for task in tasks] == [200] * 3 + [400] * 3
    for task in tasks:
        prompt, rest = ("".join(map(chr, ids)) for ids in (task.prompt, task.rest))
        key = rest[-task.judged :]
        assert prompt.count(key) == 2
        assert rest == f"{QUESTION} {key}"
        assert "pass key" not in prompt.replace(f"The pass key is {key}", "").replace(
            f"{key} is the pass key", ""
        )
    (text,) = continuations({"a": "y" * 50}, encode, 30, 20)
    assert (len(text.prompt), len(text.rest), text.judged) == (30, 20, 19)
    with pytest.raises(ValueError, match="'a' has 50 tokens, 51 are needed"):
        continuations({"a": "y" * 50}, encode, 31, 20)
    with pytest.raises(ValueError, match="cannot be judged"):
        Task("t", text.prompt, text.rest[:1], 1)


def test_divergence_is_that_of_the_definition() -> None:
    a, b = torch.tensor([[0.2, 0.8]]), torch.tensor([[0.5, 0.5]])
    expected = 0.2 * math.log(0.2 / 0.5) + 0.8 * math.log(0.8 / 0.5)
    assert divergence(a.log(), b.log() + 3) == pytest.approx(expected, rel=1e-5)
    assert divergence(a.log(), a.log()) == pytest.approx(0, abs=1e-6)


def test_with_everything_selected_quality_is_that_of_dense(tiny) -> None:
    """And with little selected it is not: the judge can tell. The page reads well."""
    rng = np.random.default_rng(0)
    tasks = [Task(f"t{at}", rng.integers(0, 512, 200).astype(np.int32),
                  rng.integers(0, 512, 12).astype(np.int32), 11) for at in range(2)]  # fmt: skip
    chosen = [Variant("dense"), Variant("quest", 512, 16, 1), Variant("exact", 64)]
    dense, everything, little = list(measure(tiny, {"texts": tasks, "pass keys": tasks}, chosen))
    for row, agrees in ((everything, True), (little, False)):
        for task in row["groups"]["texts"]["tasks"]:
            # Float32 sums in another order.
            assert (task["divergence"] < 1e-6) == agrees
    assert little["groups"]["texts"]["hit_rate"] < 1
    machine = {"gpu": None, "cpu": "cpu", "commit": "c", "command": "python"}
    report = {"machine": machine, "model": "tiny", "prompt": 200, "seconds": 1.0,
              "variants": json.loads(json.dumps([dense, everything, little]))}  # fmt: skip
    page = markdown(report)
    assert all(row["name"] in page for row in (dense, everything, little))
    widths = {line.count("|") for line in page.split("## ")[1].splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_variants_differ_by_name_and_the_first_is_the_reference() -> None:
    names = [variant.name for variant in variants()]
    assert names[0] == "dense"
    assert len(set(names)) == len(names)
