"""Decode on one CUDA GPU: what it computes, where its rows come from, and that nothing waits."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import cycle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.worker.device_queues import Queue
from hiscore.decoding.worker.step_runner import StepOutputs
from hiscore.decoding.worker.worker import CacheWorker
from tests.support.decode_client import serving
from tests.support.decode_truth import DecodeTruth, near_best
from tests.support.decoding import build, checkpoint, greedy, prompt
from tests.support.worker_driver import Driver, device_rows, host_rows

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

# Family, tokens selected, tokens in the buffer: so few that most of a sequence's rows come from the host.
SPARSE = {
    "dense": ("qwen3", 16, 24),
    "quest": ("qwen3", 160, 192),
    "exact": ("llama", 16, 24),
    "dsa": ("glm-shared", 16, 24),
}
# Everything is selected up to 256 tokens, and a sequence that may become longer still swaps pages in.
WHOLE = {**SPARSE, "quest": ("qwen3", 256, 256), "exact": ("llama", 256, 256)}
DTYPES = [torch.float32, torch.bfloat16]
# Two float32 implementations that add in different orders; what the contract calls a near tie.
NEAR = 1e-4
# Launches held up by about 3 ms: a queue falls far behind the host, and the other one behind it or not at all.
CYCLES = 5_000_000
LONGER = (1, 10, 100)
STEPS_AHEAD = 16


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    """What a worker has allocated may be written to."""
    with torch.inference_mode():
        yield


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., CacheWorker]:
    """Workers, each built once: every test frees all that it takes."""

    @cache
    def path(family: str) -> Any:
        return checkpoint(family, tmp_path_factory.mktemp("checkpoint"))

    @cache
    def get(selector: str, family: str, top_k: int, buffer: int, **settings: Any) -> CacheWorker:
        return build(path(family), selector, top_k, buffer, **{"device": "cuda", **settings})

    get.path = path  # type: ignore[attr-defined]
    return get


def same(one: Sequence[Tensor], other: Sequence[Tensor]) -> bool:
    return len(one) == len(other) and all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def run(
    worker: CacheWorker, length: int = 350, steps: int = 12, cold: bool = False
) -> tuple[list[Tensor], int]:
    """A long sequence and a short one, which joins later and leaves earlier: all logits, and the misses."""
    driver = Driver(worker)
    first, logits = driver.admit(prompt(length), 500 - length)
    found = [logits]
    for _ in range(3):
        found.append(driver.step([first], cold=cold))
    second, logits = driver.admit(prompt(9, seed=1), 12)
    found.append(logits)
    for _ in range(steps):
        found.append(driver.step([second, first], cold=cold))
    driver.leave(second)
    found.append(driver.step([first], cold=cold))
    driver.leave(first)
    torch.cuda.synchronize()
    assert all(logits.isfinite().all() for logits in found)
    return found, driver.misses


PROMPTS = [prompt(150), prompt(1, seed=1), prompt(37, seed=2), prompt(230, seed=3)]


def generate(worker: CacheWorker, max_tokens: int = 24) -> list[list[int]]:
    """What an engine makes of the prompts, all at once."""
    with serving(worker) as client:
        outcomes = [client.submit(tokens, max_tokens) for tokens in PROMPTS]
        client.wait(outcomes)
    assert [outcome.end for outcome in outcomes] == ["length"] * len(PROMPTS)
    return [outcome.tokens for outcome in outcomes]


@pytest.mark.parametrize(("selector", "of"), [*WHOLE.items(), ("dense", ("gemma2", 16, 24))])
def test_greedy_tokens_are_transformers(
    workers: Any, selector: str, of: tuple[str, int, int], tmp_path: Any
) -> None:
    tokens, truth = generate(workers(selector, *of)), DecodeTruth(workers.path(of[0]), torch.float32)
    for given, found in zip(PROMPTS, tokens, strict=True):
        expected = truth.follow(given, found[:-1])
        assert near_best(expected, found).max() < NEAR
        # Control: the tokens after these are no near ties.
        assert near_best(expected, [(token + 1) % expected.shape[1] for token in found]).max() > 100 * NEAR


@pytest.mark.parametrize("selector", ["quest", "exact", "dsa"])
def test_what_is_selected_is_what_the_cpu_selects(workers: Any, selector: str) -> None:
    """Far beyond what a step selects: a greedy sequence, and plain torch that is fed the same tokens."""
    of = SPARSE[selector]
    on_cpu = Driver(workers(selector, *of, device="cpu"))
    given, tokens = PROMPTS[3], generate(workers(selector, *of))[3]
    seq_index, logits = on_cpu.admit(given, 24)
    expected = [logits]
    for token in tokens[:-1]:
        expected.append(on_cpu.step([seq_index], fed=[token])[0])
    on_cpu.leave(seq_index)
    assert near_best(torch.stack(expected), tokens).max() < NEAR
    if selector == "dsa":
        return
    # Control: attending to everything gives other tokens.
    dense = DecodeTruth(workers.path(of[0]), torch.float32).follow(given, tokens[:-1])
    assert (dense - torch.stack(expected)).abs().max() > 100 * NEAR


@pytest.mark.parametrize("dtype", DTYPES)
def test_auto_on_the_device_as_a_whole_is_dense(workers: Any, dtype: torch.dtype) -> None:
    """Graphs without selection; then one of the two selects, and the other one's bits stay."""
    found = []
    for selector, resident in (("dense", True), ("auto", True), ("auto", False)):
        driver = Driver(workers(selector, "qwen3", 160, 192, dtype=dtype))
        first, _ = driver.admit(prompt(350), 150, resident=resident)
        second, _ = driver.admit(prompt(200, seed=1), 100, resident=True)
        found.append([driver.step([second, first]) for _ in range(8)])
        driver.leave(first)
        driver.leave(second)
    dense, auto, mixed = found
    assert same(dense, auto)
    assert same([step[0] for step in dense], [step[0] for step in mixed])
    assert not same([step[1] for step in dense], [step[1] for step in mixed])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("selector", SPARSE)
def test_a_graph_gives_what_its_launches_give(workers: Any, selector: str, dtype: torch.dtype) -> None:
    from hiscore.decoding.worker.cuda_graphs import GraphRunner

    worker = workers(selector, *SPARSE[selector], dtype=dtype)
    runner = worker._runner
    captured, _ = run(worker)

    class LaunchingRunner(GraphRunner):
        """Launches every kernel by itself."""

        def _capture_all(self) -> None:
            pass

        def _launch(self, bucket: Any, padded: Tensor) -> Any:
            rows = padded.to(self._device, non_blocking=True)
            return self._decode(rows, self._make_ops(bucket.reach, bucket.attends), bucket.attends)

    eager = LaunchingRunner(
        runner._model, runner._attention, runner._value_dim, worker.cache_config, worker._queues
    )
    worker._runner = eager
    try:
        launched, _ = run(worker)
    finally:
        worker._runner = runner
    assert runner._captured
    assert not eager._captured
    assert same(captured, launched)
    assert not torch.equal(captured[1], captured[2])  # each step gives other logits


# Quest always selects the pages of the ring, so that its tokens depend on the width.
def test_the_ring_changes_no_token(workers: Any) -> None:
    tokens = [generate(workers("dsa", *SPARSE["dsa"], ring=ring), 40) for ring in (4, 1)]
    assert tokens[0] == tokens[1]
    assert len({tuple(each) for each in tokens[0]}) == len(PROMPTS)


@pytest.mark.parametrize("dtype", DTYPES)
def test_all_from_the_host_is_dense_to_the_bit(workers: Any, dtype: torch.dtype) -> None:
    dense, none = run(workers("dense", *WHOLE["dense"], dtype=dtype), length=200)
    worker = workers("quest", *WHOLE["quest"], dtype=dtype)
    sparse, misses = run(worker, length=200, cold=True)
    assert none == 0
    assert misses > 100
    assert same(dense, sparse)

    # Control: one number of the host's that comes in by a swap counts.
    driver = Driver(worker)
    seq_index, _ = driver.admit(prompt(200), 300)
    driver.drain(seq_index)
    torch.cuda.synchronize()
    page = int(driver.sequences[seq_index].held.host_pages[2])
    worker._cache.host_kv[-1, page, 0, 1, 3, 0] += 8
    assert not torch.equal(driver.step([seq_index], cold=True), dense[1])
    driver.leave(seq_index)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("selector", ["quest", "exact", "dsa"])
def test_where_rows_come_from_changes_no_bit(workers: Any, selector: str, dtype: torch.dtype) -> None:
    worker = workers(selector, *SPARSE[selector], dtype=dtype)
    warm, some = run(worker)
    cold, more = run(worker, cold=True)
    assert more > some > 0
    assert same(warm, cold)


def differing(worker: CacheWorker, driver: Driver) -> int:
    """Tokens of layers and heads whose rows on the device, where there are any, are not the host's."""
    shape, wrong = worker._cache.shape, 0
    for sequence in driver.sequences.values():
        whole = host_rows(worker, sequence, torch.arange(sequence.length))
        assert whole.isfinite().all()
        for layer in range(shape.layers):
            for head in range(shape.kv_heads):
                positions, rows = device_rows(worker, sequence, layer, head)
                assert sequence.length - 1 in positions
                assert 0 in positions or layer not in worker._cache.dense
                wrong += int((whole[layer, positions, :, head] != rows).any(-1).any(-1).sum())
    return wrong


@pytest.mark.parametrize("ring", [4, 1])
@pytest.mark.parametrize("selector", ["quest", "dsa", "dense"])
def test_the_host_has_what_the_device_has(workers: Any, selector: str, ring: int) -> None:
    worker = workers(selector, *SPARSE[selector], ring=ring)
    driver = Driver(worker)
    seq_indices = [
        driver.admit(prompt(length, seed=length), most)[0] for length, most in ((200, 300), (9, 60), (1, 40))
    ]
    for _ in range(30):
        driver.step(seq_indices)
    for seq_index in seq_indices:
        driver.drain(seq_index)
    torch.cuda.synchronize()
    assert differing(worker, driver) == 0
    newest, page_size = driver.sequences[seq_indices[0]], worker.cache_config.page_size
    worker._cache.host_kv[1, int(newest.held.host_pages[(newest.length - 1) // page_size])] += (
        1  # the control
    )
    assert differing(worker, driver) > 0
    for seq_index in seq_indices:
        driver.leave(seq_index)


def sampled(rows: int) -> SamplingBatch:
    each = np.arange(rows)
    return SamplingBatch(
        (each % 2 * 0.8).astype(np.float32),
        (each * 5).astype(np.int32),
        np.full(rows, 0.9, np.float32),
        each / 7,
    )


@pytest.mark.parametrize("ring", [4, 1])
@pytest.mark.parametrize("selector", SPARSE)
def test_nothing_waits_in_a_steady_step(workers: Any, selector: str, ring: int) -> None:
    worker = workers(selector, *SPARSE[selector], ring=ring)
    driver = Driver(worker)
    seq_indices = [driver.admit(prompt(length, seed=length), 300)[0] for length in (100, 30, 5)]
    kinds = cycle((greedy, sampled))
    for _ in range(4):
        driver.sampling = next(kinds)
        driver.step(seq_indices)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        with pytest.raises(RuntimeError, match="synchronizing"):
            worker._runner.input_ids.max().item()  # the control
        launched = []
        for _ in range(10):
            driver.sampling = next(kinds)
            launched.append(driver.launch(seq_indices))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert all(driver.read(each).isfinite().all() for each in launched)
    for seq_index in seq_indices:
        driver.leave(seq_index)


def ahead(worker: CacheWorker) -> list[Tensor]:
    """Steps launched without reading any: their logits, and what the host has of the sequence in the end."""
    torch.cuda.synchronize()
    driver = Driver(worker)
    seq_index, _ = driver.admit(prompt(60), 100)
    launched = [driver.launch([seq_index]) for _ in range(STEPS_AHEAD)]
    found = [driver.read(each) for each in launched]
    driver.drain(seq_index)
    torch.cuda.synchronize()
    sequence = driver.sequences[seq_index]
    found.append(host_rows(worker, sequence, torch.arange(sequence.length)))
    driver.leave(seq_index)
    return found


@pytest.mark.parametrize("slow", [Queue.COMPUTE, Queue.OFFLOAD])  # nothing is restored here
@pytest.mark.parametrize("ring", [4, 1])
def test_a_slow_queue_changes_nothing(
    workers: Any, ring: int, slow: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = workers("exact", *SPARSE["exact"], ring=ring)
    # Of the class: `watch_logits`, of each new driver, replaces the instance's forward by the class's.
    runner = type(worker._runner)
    forward, steps = runner.forward, []

    def kept(*batch: Any) -> StepOutputs:
        steps.append(forward(*batch))
        return steps[-1]

    monkeypatch.setattr(runner, "forward", kept)
    expected = ahead(worker)
    assert expected[-1].isfinite().all()
    queues = worker._queues
    use, wait = queues.use, queues.wait
    cycles = CYCLES

    @contextmanager
    def use_slowly(queue: Queue) -> Iterator[None]:
        with use(queue):
            if queue is slow:
                torch.cuda._sleep(cycles)
            yield

    monkeypatch.setattr(queues, "use", use_slowly)
    assert same(ahead(worker), expected)
    # Control: the other queue waits for nothing. It is told in advance which tokens to copy, as in the runs
    # before: what it would read of a step that has not run yet could be any address.
    assert len(steps) == 2 * STEPS_AHEAD
    written = cycle([(step.host_slots, step.buffer_slots) for step in steps])

    def told(*batch: Any) -> StepOutputs:
        host_slots, buffer_slots = next(written)
        return replace(forward(*batch), host_slots=host_slots, buffer_slots=buffer_slots)

    monkeypatch.setattr(runner, "forward", told)
    monkeypatch.setattr(queues, "wait", lambda queue, event: wait(queue, event) if queue is slow else None)
    # Where other processes share the GPU, the other queue may itself be late.
    for longer in LONGER:
        cycles = longer * CYCLES
        if not same(ahead(worker), expected):
            return
    pytest.fail("nothing depends on these waits")
