"""The engine over a `HashWorker`: every sequence gets the tokens it would get alone, and all memory is freed."""

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hiscore.decoding.engine import engine as engine_module
from hiscore.decoding.engine.engine import DecodeEngine
from hiscore.decoding.engine.inbox import Inbox
from hiscore.decoding.interface.cache_config import CacheConfig
from hiscore.decoding.interface.worker import NOT_FINITE, DecodeBatch
from hiscore.decoding.pools.windows import Windows
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.sequence import DecodeCall, Output, Sequence, Status
from hiscore.errors import Code, RequestError
from tests.support.decode_client import assert_pools_are_free
from tests.support.decode_worker import EOS, KINDS, TINY, VOCABULARY, HashWorker, alone, preempt_after
from tests.support.tiers import first_of
from tests.support.timeouts import TIMEOUT_S

WINDOWED = replace(TINY, dense=True, window_pages=30, window_ring=3, window=10, host_pages=40)


class Letters:
    """A detokenizer: every token is a letter."""

    def push(self, token: int) -> str:
        return chr(ord("A") + token)

    def flush(self) -> str:
        return ""


def text_of(tokens: list[int]) -> str:
    return "".join(Letters().push(token) for token in tokens)


class Callers:
    """Records what all callers were sent. Each is identified by its own object, as Triton's are."""

    def __init__(self) -> None:
        self.tokens: dict[Any, list[int]] = {}
        self.texts: dict[Any, str] = {}
        self.ends: dict[Any, str | RequestError] = {}
        self.hook: Callable[[Any], None] = lambda caller: None
        self.changed = threading.Condition()

    def emit(self, caller: Any, output: Output | RequestError) -> None:
        with self.changed:
            assert caller not in self.ends, "an answer after the last"
            if isinstance(output, RequestError):
                self.ends[caller] = output
            else:
                self.tokens.setdefault(caller, []).extend(output.token_ids)
                self.texts[caller] = self.texts.get(caller, "") + output.text
                if output.finish_reason:
                    self.ends[caller] = output.finish_reason
            self.changed.notify_all()
        self.hook(caller)

    def wait(self, condition: Callable[[], bool], timeout: float = TIMEOUT_S) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, timeout)


@dataclass(eq=False)
class Caller:
    name: int


@contextmanager
def running(
    worker: HashWorker, callers: Callers, max_queue: int = 1000, quantum: int = 4, **more: Any
) -> Iterator[DecodeEngine]:
    """An engine; at its end all memory must be free, and the worker must have seen no violation."""
    more["preemption_policy"] = preempt_after(quantum)
    engine = DecodeEngine(worker, lambda *asked: Letters(), frozenset({EOS}), max_queue, callers.emit, **more)
    try:
        yield engine
    finally:
        engine.close()
    assert_all_is_free(engine, worker)


def assert_all_is_free(engine: DecodeEngine, worker: HashWorker) -> None:
    assert worker.violations == []
    assert not worker.sequences
    assert not worker.kept
    assert not engine._live
    assert_pools_are_free(engine)


def expire(engine: DecodeEngine, sequence: Sequence) -> None:
    """Let a call be late from now on."""
    sequence.call = replace(sequence.call, deadline=0.0)
    engine._deadlines.watch(0.0, id(sequence.reply_to))


def submit_all(engine: DecodeEngine, calls: dict[Caller, DecodeCall]) -> None:
    for name, wanted in calls.items():
        engine.submit(wanted, name)


def run_all(engine: DecodeEngine, callers: Callers, calls: dict[Caller, DecodeCall]) -> None:
    submit_all(engine, calls)
    callers.wait(lambda: len(callers.ends) == len(calls))


def call(prompt: list[int], max_tokens: int = 8, deadline: float = math.inf, **options: Any) -> DecodeCall:
    return DecodeCall(np.array(prompt, np.int32), SamplingParams(max_tokens=max_tokens, **options), deadline)


def long_call(first: int, prompt: int = 8, max_tokens: int = 40, **options: Any) -> DecodeCall:
    return call([first, *range(prompt - 1)], max_tokens, ignore_eos=True, **options)


def assert_as_alone(callers: Callers, caller: Any, wanted: DecodeCall) -> None:
    tokens, reason = alone(wanted)
    assert callers.tokens[caller] == tokens
    assert callers.ends[caller] == reason
    assert callers.texts[caller] == text_of(tokens[:-1] if reason == "stop" else tokens)


def assert_all_as_alone(callers: Callers, calls: dict[Caller, DecodeCall]) -> None:
    for name, wanted in calls.items():
        assert_as_alone(callers, name, wanted)


def fits(call: DecodeCall) -> bool:
    """Without selection a sequence must fit the device buffers as a whole."""
    return (
        call.params.sparse or len(call.prompt) + call.params.max_tokens <= TINY.device_pages * TINY.page_size
    )


CALLS = st.builds(
    call,
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=60)
    | st.integers(1, 60).map(lambda length: list(range(length))),  # these begin alike
    st.integers(1, 60),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(-(2**63), 2**63 - 1),
    sparse=st.booleans(),
    ignore_eos=st.booleans(),
    stop_token_ids=st.frozensets(st.integers(0, VOCABULARY - 1), max_size=2),
).filter(fits)


def holding_back(wanted: DecodeCall) -> DecodeCall:
    """The same with a stop string that its text begins and does not complete."""
    stop = (text_of(alone(wanted)[0]) + "never",)
    return replace(wanted, params=replace(wanted.params, stop=stop))


@pytest.mark.slow
@settings(max_examples=100)
@given(
    calls=st.lists(st.tuples(CALLS, st.integers(0, 40), st.none() | st.integers(0, 80)), max_size=16),
    by_deadline=st.booleans(),
    delay=st.integers(0, 12),
    quantum=st.sampled_from([0, 1, 3]),
    kind=st.sampled_from(KINDS),
    chunk=st.sampled_from([1, 5, 24]),
    caching=st.booleans(),
    overlap=st.booleans(),
)
def test_join_and_leave_at_every_step_changes_no_sequence(
    calls: list[tuple[DecodeCall, int, int | None]],
    by_deadline: bool,
    delay: int,
    quantum: int,
    kind: dict[str, Any],
    chunk: int,
    caching: bool,
    overlap: bool,
) -> None:
    """Each call arrives after a number of steps, and may be cancelled or be late some steps later.

    The text of every other one might begin a stop string, so all of it is held back until the end.
    """
    calls = [
        (holding_back(wanted) if index % 2 else wanted, arrival, end)
        for index, (wanted, arrival, end) in enumerate(calls)
    ]
    caching = caching and "window_ring" not in kind
    cache_config = replace(TINY, **kind, prefill_token_budget=chunk, prefix_cache=caching)
    worker = HashWorker(cache_config, delay)
    callers = Callers()
    names = [Caller(name) for name in range(len(calls))]
    arrivals = sorted(range(len(calls)), key=lambda i: calls[i][1])
    cancels = {i: calls[i][1] + calls[i][2] for i in arrivals if calls[i][2] is not None}
    with running(worker, callers, quantum=quantum, overlap=overlap) as engine:
        submitted: list[int] = []
        # The first is submitted from here, the others by the engine's thread.
        one_at_a_time = threading.Lock()

        def go_on(nobody_is_left: bool) -> None:
            """Submit and cancel what is due at this step.

            With nothing running there are no steps, so the next call is submitted too.
            """
            with one_at_a_time:
                while arrivals and (nobody_is_left or calls[arrivals[0]][1] <= worker.steps):
                    submitted.append(arrivals.pop(0))
                    engine.submit(calls[submitted[-1]][0], names[submitted[-1]])
                    nobody_is_left = False
                for i in [i for i in cancels if i in submitted and cancels[i] <= worker.steps]:
                    if not by_deadline:
                        engine.cancel(names[i])
                    elif (late := engine._live.get(id(names[i]))) is not None:
                        expire(engine, late)
                    del cancels[i]

        worker.on_step = lambda rows: go_on(nobody_is_left=False)
        callers.hook = lambda caller: go_on(nobody_is_left=len(callers.ends) == len(submitted))
        go_on(nobody_is_left=True)
        callers.wait(lambda: len(callers.ends) == len(calls))
    for (wanted, _, cancelled), name in zip(calls, names, strict=True):
        tokens, _ = alone(wanted)
        if callers.ends[name] == "cancelled" or isinstance(callers.ends[name], RequestError):
            assert cancelled is not None
            got = callers.tokens.get(name, [])
            assert got == tokens[: len(got)]
            assert callers.texts.get(name, "") == text_of(got)
        else:
            assert_as_alone(callers, name, wanted)


@pytest.mark.parametrize("kind", first_of(*KINDS, others=pytest.mark.slow))
def test_200_sequences_share_pools_for_20(kind: dict[str, Any]) -> None:
    pools = CacheConfig(
        page_size=4, lru_pages=4, ring_pages=2, host_pages=5000, device_pages=120, staging_pages=16,
        max_sequences=20, prefill_token_budget=64, context_length=100,
    )  # fmt: skip
    # Room for the windows and the states of all that are preempted: else they would start over.
    enough = {name: 1_000 for name in ("window_pages", "state_slots") if name in kind}
    cache_config = replace(pools, **kind | {"device_pages": 120} | enough)
    random = np.random.default_rng(0)
    worker, callers = HashWorker(cache_config, delay=3), Callers()
    calls = [
        call(random.integers(0, VOCABULARY, random.integers(1, 50)).tolist(), int(random.integers(1, 50)), seed=i,
             temperature=float(i % 2), ignore_eos=bool(i % 3), sparse=bool(i % 5))
        for i in range(200)
    ]  # fmt: skip
    names = [Caller(i) for i in range(200)]
    with running(worker, callers, quantum=8) as engine:
        run_all(engine, callers, dict(zip(names, calls, strict=True)))
        stats = engine.stats()
    assert_all_as_alone(callers, dict(zip(names, calls, strict=True)))
    assert stats.tokens == sum(len(tokens) for tokens in callers.tokens.values())
    assert stats.prompt_tokens == sum(len(wanted.prompt) for wanted in calls)
    assert stats.preemptions == worker.restores > 0
    assert worker.prefilled_tokens == sum(len(wanted.prompt) for wanted in calls)


def test_a_long_prompt_is_counted_while_it_is_computed() -> None:
    """Before its first token no other counter shows that the engine is working."""
    worker, callers = HashWorker(replace(TINY, prefill_token_budget=5)), Callers()
    counted: list[int] = []

    def on_prefill(launch: str, seq_indices: list[int]) -> None:
        if launch == "prefill":
            counted.append(engine.stats().prompt_tokens)

    worker.fail = on_prefill
    with running(worker, callers) as engine:
        engine.submit(long_call(1, prompt=40), Caller(0))
        callers.wait(lambda: len(callers.ends) == 1)
    # Results are read one launch later.
    assert counted == [0, 0, 5, 10, 15, 20, 25, 30]


@pytest.mark.parametrize("overlap", [True, False])
def test_the_next_step_is_launched_before_the_last_is_read_where_both_overlap(overlap: bool) -> None:
    worker, callers = HashWorker(), Callers()
    ahead: list[int] = []
    wanted = long_call(1)
    name = Caller(0)
    worker.on_step = lambda rows: ahead.append(int(rows.positions[0]) - 7 - len(callers.tokens.get(name, [])))
    with running(worker, callers, overlap=overlap) as engine:
        engine.submit(wanted, name)
    assert_as_alone(callers, name, wanted)
    # A step is fed the token before it, which has not been read: only the device knows it.
    assert set(ahead[1:]) == {int(overlap)}
    assert worker.steps == 39  # a sequence that ends at max_tokens has no wasted row


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize(
    "stage", [each for each in Status if each not in (Status.RESTORING, Status.FINISHED)]
)
def test_an_end_at_each_stage_gives_everything_back(stage: Status, how: str) -> None:
    """Sequences of all kinds share small pools; some are ended while they have this status."""
    worker, callers = HashWorker(replace(TINY, prefill_token_budget=6), delay=5), Callers()
    calls = [long_call(i, prompt=20 + i, sparse=bool(i % 3)) for i in range(12)]
    names = [Caller(i) for i in range(12)]
    ended: list[Any] = []
    with running(worker, callers) as engine:
        plan = engine._scheduler.schedule

        def schedule_and_end(drained: Callable[[int], bool]) -> Any:
            scheduled = plan(drained)
            for sequence in getattr(engine._scheduler.queues, stage.name.lower()):
                if not sequence.ended and len(ended) < 6 and sequence.reply_to not in ended:
                    ended.append(sequence.reply_to)
                    if how == "cancel":
                        engine.cancel(sequence.reply_to)
                    else:
                        expire(engine, sequence)
            return scheduled

        engine._scheduler.schedule = schedule_and_end  # type: ignore[method-assign]
        run_all(engine, callers, dict(zip(names, calls, strict=True)))
    assert ended, f"none was seen {stage}"
    told = 0
    for name, wanted in zip(names, calls, strict=True):
        end = callers.ends[name]
        if name in ended and end != "length":  # the last token of some was in flight already
            told += 1
            if how == "cancel":
                assert end == "cancelled"
            else:
                assert isinstance(end, RequestError)
                assert end.code is Code.UNAVAILABLE
                where = "in the queue" if stage is Status.WAITING else r"after \d+ of at most 40 tokens"
                with pytest.raises(RequestError, match=f"Request timeout expired {where}"):
                    raise end
            got = callers.tokens.get(name, [])
            assert got == alone(wanted)[0][: len(got)]
        else:
            assert_as_alone(callers, name, wanted)
    assert told


def test_a_sequence_is_cancelled_within_two_steps() -> None:
    worker, callers = HashWorker(), Callers()
    name, wanted = Caller(0), long_call(1)
    with running(worker, callers) as engine:
        worker.on_step = lambda rows: engine.cancel(name) if worker.steps == 10 else None
        engine.submit(wanted, name)
        callers.wait(lambda: name in callers.ends)
    assert callers.ends[name] == "cancelled"
    assert worker.steps <= 12
    assert engine.stats().cancelled == 0  # it counts those that had not started
    engine.cancel(name)  # unknown by now: ignored


class Gate:
    """Blocks the engine's thread when a step is fed a position, until the test opens it."""

    def __init__(self, position: int, rows: int) -> None:
        self.position, self.rows = position, rows
        self.reached, self.open = threading.Event(), threading.Event()

    def on_step(self, rows: DecodeBatch) -> None:
        if len(rows.seq_indices) == self.rows and rows.positions.max() == self.position:
            self.reached.set()
            assert self.open.wait(TIMEOUT_S)

    def wait(self) -> None:
        assert self.reached.wait(TIMEOUT_S)


# A running sequence does not count as waiting; one that waits for pages does, even if more could run.
@pytest.mark.parametrize(("runs", "sparse"), [(4, True), (1, False)])
def test_a_full_queue_refuses(runs: int, sparse: bool) -> None:
    worker, callers = HashWorker(), Callers()
    gates = [Gate(position, runs) for position in ((20, 25) if sparse else (66, 70))]
    worker.on_step = lambda rows: [gate.on_step(rows) for gate in gates] and None
    wanted = {
        Caller(name): long_call(name, prompt=8 if sparse else 44, max_tokens=32, sparse=sparse)
        for name in range(runs + 5)
    }
    names = list(wanted)
    with running(worker, callers, max_queue=3, quantum=0) as engine:
        for name in names[:runs]:
            engine.submit(wanted[name], name)
        gates[0].wait()
        for name in names[runs : runs + 3]:
            engine.submit(wanted[name], name)
        gates[0].open.set()
        gates[1].wait()
        with pytest.raises(RequestError, match="the queue is full: 3 calls wait") as refused:
            engine.submit(wanted[names[-2]], names[-2])
        assert refused.value.code is Code.UNAVAILABLE
        gates[1].open.set()
        engine.cancel(names[runs])
        callers.wait(lambda: len(callers.ends) == runs + 3)
        engine.submit(wanted[names[-1]], names[-1])
        assert (engine.stats().full, engine.stats().cancelled) == (1, 1)
    assert callers.ends.pop(names[runs]) == "cancelled"
    for name in callers.ends:
        assert_as_alone(callers, name, wanted[name])


@pytest.mark.slow
@pytest.mark.parametrize("counted", [True, False])
def test_preempted_sequences_keep_places_in_the_queue(counted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many ask to be next. The control: not counted, as many are preempted as are ever accepted."""
    if not counted:
        update = Inbox.update_room
        monkeypatch.setattr(Inbox, "update_room", lambda inbox, *room: update(inbox, *room[:3]))
    worker, callers = HashWorker(replace(TINY, host_pages=1_000)), Callers()
    names = [Caller(number) for number in range(30)]
    accepted: list[Caller] = []
    most = 0

    def on_step(rows: DecodeBatch) -> None:
        nonlocal most
        most = max(most, len(engine._scheduler.queues.preempted))
        with suppress(RequestError):
            while len(accepted) < len(names):
                engine.submit(long_call(len(accepted)), names[len(accepted)])
                accepted.append(names[len(accepted)])

    worker.on_step = on_step
    with running(worker, callers, max_queue=3, quantum=2) as engine:
        engine.submit(long_call(0), first := Caller(-1))
        callers.wait(lambda: len(callers.ends) == len(names) + 1)
    assert (most <= 3) == counted
    assert_as_alone(callers, first, long_call(0))
    for number, name in enumerate(names):
        assert_as_alone(callers, name, long_call(number))


def test_what_never_fits_is_refused_at_once() -> None:
    callers = Callers()
    with running(HashWorker(), callers) as engine:
        with pytest.raises(RequestError, match=r"at most 120 \(MAX_CONTEXT") as refused:
            engine.submit(long_call(1, prompt=81), Caller(0))
        assert refused.value.code is Code.INVALID_ARG
        assert engine._scheduler.idle
    assert callers.ends == {}


@pytest.mark.parametrize("where", ["prefill", "prefill result", "admit", "restore", "step", "step result"])
def test_a_failure_ends_only_the_sequences_concerned(where: str) -> None:
    worker, callers = HashWorker(delay=2), Callers()
    calls = {Caller(i): long_call(i, prompt=20) for i in range(10)}
    failures: list[Exception] = []
    failed_seq_indices: list[int] = []

    def fail(at: str, seq_indices: list[int]) -> Exception | None:
        if at != where or failed_seq_indices or (where.startswith("step") and worker.steps < 20):
            return None
        failed_seq_indices.extend(seq_indices)
        return ValueError("secret")

    worker.fail = fail
    with running(worker, callers, quantum=3, on_failure=failures.append) as engine:
        run_all(engine, callers, calls)
    assert failed_seq_indices
    assert [str(failure) for failure in failures] == ["secret"]
    errors = {name: end for name, end in callers.ends.items() if isinstance(end, RequestError)}
    assert 1 <= len(errors) <= len(failed_seq_indices)
    for error in errors.values():
        assert error.code is Code.INTERNAL
        assert "secret" not in error.message
    for name, wanted in calls.items():
        if name not in errors:
            assert_as_alone(callers, name, wanted)


@pytest.mark.parametrize("failure", [ValueError("secret"), NOT_FINITE, None])
def test_what_fails_after_its_end_is_found_by_nobody(failure: Exception | int | None) -> None:
    """One that is cancelled while a step is in flight, which then fails; the control does not."""
    worker, callers = HashWorker(replace(TINY, prefix_cache=True)), Callers()
    first, second = Caller(0), Caller(1)

    def cancel(caller: Any) -> None:
        if caller is first and len(callers.tokens[first]) == 20 and first not in callers.ends:
            engine.cancel(first)

    def fail(at: str, seq_indices: list[int]) -> Exception | int | None:
        return failure if at == "step result" and first in callers.ends else None

    callers.hook = cancel
    worker.fail = fail
    with running(worker, callers) as engine:
        engine.submit(long_call(0), first)
        callers.wait(lambda: first in callers.ends)
        assert callers.ends[first] == "cancelled"
        while not engine._scheduler.idle:
            time.sleep(0.001)
        said = [*long_call(0).prompt.tolist(), *callers.tokens[first], 1]
        engine.submit(call(said, 1), second)
        callers.wait(lambda: second in callers.ends)
        # The prompt was published while its sequence ran.
        well = len(said) // TINY.page_size * TINY.page_size
        assert engine.stats().cached_tokens == (well if failure is None else 8)


FIRST = long_call(0, prompt=20)
OUT_OF_MEMORY = RequestError("there is no memory left", Code.UNAVAILABLE)
EARLY_ENDS: dict[str, tuple[DecodeCall, int]] = {
    "one token": (long_call(0, prompt=20, max_tokens=1), 16),
    "a stop token": (long_call(0, prompt=20, stop_token_ids=frozenset(alone(FIRST)[0][:1])), 16),
    "cancelled": (FIRST, 16),
    "no memory to sample": (FIRST, 16),
    # The controls: what was computed is of no use.
    "no memory to launch": (FIRST, 0),
    "no admission": (FIRST, 0),
    "one token that is not finite": (long_call(0, prompt=20, max_tokens=1), 0),
}


@pytest.mark.parametrize("delay", [0, 20])
@pytest.mark.parametrize("kind", KINDS[:5])
@pytest.mark.parametrize("how", first_of(*EARLY_ENDS, others=pytest.mark.slow))
def test_a_prompt_is_found_however_early_its_sequence_ends(
    how: str, kind: dict[str, Any], delay: int
) -> None:
    worker, callers = HashWorker(replace(TINY, **kind, block_size=0, prefix_cache=True), delay), Callers()
    (early, found), first, second = EARLY_ENDS[how], Caller(0), Caller(1)
    failures: list[Exception] = []
    block = worker.cache_config.block_tokens
    if how == "cancelled":
        callers.hook = lambda caller: engine.cancel(caller) if caller is first else None
    elif how == "no memory to sample":
        worker.failures = lambda at, seq_indices: {0: OUT_OF_MEMORY} if at == "prefill" else {}
    elif how == "no memory to launch":
        worker.fail = lambda at, seq_indices: OUT_OF_MEMORY if at == "prefill" else None
    elif how == "no admission":
        worker.fail = lambda at, seq_indices: ValueError("secret") if at == "admit" else None
    elif how.endswith("not finite"):
        worker.fail = lambda at, seq_indices: NOT_FINITE if at == "prefill result" else None
    with running(worker, callers, on_failure=failures.append) as engine:
        run_all(engine, callers, {first: early})
        while not engine._scheduler.idle:
            time.sleep(0.001)
        worker.fail, worker.failures = lambda at, seq_indices: None, lambda at, seq_indices: {}
        engine.submit(FIRST, second)
        callers.wait(lambda: second in callers.ends)
        assert engine.stats().cached_tokens == found // block * block
    assert_as_alone(callers, second, FIRST)
    assert [str(each) for each in failures] == ["secret"] * (how == "no admission")


def test_logits_that_are_not_finite_fail_their_own_sequence() -> None:
    worker, callers, failures = HashWorker(), Callers(), []
    bad, good = Caller(0), Caller(1)

    def fail(at: str, seq_indices: list[int]) -> int | None:
        return NOT_FINITE if at == "prefill result" and seq_indices == [0] else None

    worker.fail = fail
    with running(worker, callers, on_failure=failures.append) as engine:
        engine.submit(long_call(1, prompt=24), bad)  # a chunk of its own, at seq_index 0
        callers.wait(lambda: bad in callers.ends)
        worker.fail = lambda at, seq_indices: None
        engine.submit(long_call(2), good)
    error = callers.ends[bad]
    assert isinstance(error, RequestError)
    assert error.code is Code.INTERNAL
    assert "not a finite number" in error.message
    assert failures == []
    assert_as_alone(callers, good, long_call(2))


@pytest.mark.parametrize("spoiled", [True, False])
def test_logits_that_are_not_finite_when_they_are_computed_again_fail_their_sequence(spoiled: bool) -> None:
    """One loses all that it had and prefills its prompt again; what it was sent before is no proof of that."""
    worker, callers = HashWorker(WINDOWED), Callers()
    calls = {Caller(i): long_call(i, prompt=10, max_tokens=70) for i in range(4)}
    again = []

    def fail(at: str, seq_indices: list[int]) -> int | None:
        if at != "prefill result" or worker.prefilled_tokens <= 40 or again:
            return None
        again.append(seq_indices)
        return NOT_FINITE if spoiled else None

    worker.fail = fail
    with running(worker, callers, quantum=0) as engine:
        run_all(engine, callers, calls)
    assert len(again) == 1
    errors = [name for name, end in callers.ends.items() if isinstance(end, RequestError)]
    assert len(errors) == spoiled
    for name, wanted in calls.items():
        if name not in errors:
            assert_as_alone(callers, name, wanted)


def test_a_dead_engine_answers_all_and_refuses_more() -> None:
    worker, callers = HashWorker(), Callers()
    failures: list[Exception] = []
    deaths: list[Exception] = []
    calls = {Caller(i): long_call(i) for i in range(8)}
    told = {"on_failure": failures.append, "on_death": deaths.append}
    engine = DecodeEngine(worker, None, frozenset({EOS}), 100, callers.emit, **told)
    late = Caller(8)

    def fail(at: str, seq_indices: list[int]) -> Exception | None:
        if at != "drained" or worker.steps <= 5:
            return None
        engine.submit(long_call(8), late)  # not taken any more
        return OSError("gone")

    worker.fail = fail
    for name, wanted in calls.items():
        engine.submit(wanted, name)
    callers.wait(lambda: len(callers.ends) == len(calls) + 1)
    engine.close()
    for name, wanted in calls.items():  # those that had all of their tokens are unharmed
        if not isinstance(callers.ends[name], RequestError):
            assert callers.ends[name] == "length"
            assert callers.tokens[name] == alone(wanted)[0]
    errors = [end for end in callers.ends.values() if isinstance(end, RequestError)]
    assert isinstance(callers.ends[late], RequestError)
    assert len(errors) >= 4
    assert {error.code for error in errors} == {Code.INTERNAL}
    assert [str(each) for each in failures + deaths] == ["gone", "gone"]
    with pytest.raises(RequestError, match="decode has stopped"):
        engine.submit(long_call(1), Caller(9))


def test_text_ends_before_a_stop_string_and_what_is_held_back_comes_with_the_end() -> None:
    wanted = long_call(3)
    tokens, _ = alone(wanted)
    letters = text_of(tokens)
    cut, held = Caller(0), Caller(1)
    callers = Callers()
    with running(HashWorker(), callers) as engine:
        engine.submit(replace(wanted, params=replace(wanted.params, stop=(letters[10:13],))), cut)
        engine.submit(replace(wanted, params=replace(wanted.params, stop=(letters[38:] + "never",))), held)
    assert (callers.ends[cut], callers.texts[cut]) == ("stop", letters[:10])
    assert callers.tokens[cut] == tokens[:13]
    assert (callers.ends[held], callers.texts[held]) == ("length", letters)


@pytest.mark.parametrize("how", ["cancel", "deadline", "grammar", "row", "death"])
def test_text_that_may_begin_a_stop_string_comes_before_an_early_end(how: str) -> None:
    """Nobody knows any more how it would have gone on, so it is text like any other."""
    gate = threading.Event()
    gate.set()
    grammar = GatedGrammar(gate, fails_at=10) if how == "grammar" else None
    plain = replace(long_call(3), grammar=grammar, mask=grammar.mask() if grammar else None)
    letters = text_of(alone(plain)[0])
    worker, callers, caller = HashWorker(), Callers(), Caller(0)
    wanted = holding_back(plain)

    def end_early(rows: DecodeBatch) -> None:
        if worker.steps == 10 and how == "cancel":
            engine.cancel(caller)
        elif worker.steps == 10 and how == "deadline":
            expire(engine, *engine._live.values())
        elif worker.steps == 10 and how == "death":
            engine._scheduler = None  # type: ignore[assignment]

    worker.on_step = end_early
    if how == "row":
        error = RequestError("no memory for this one")
        worker.failures = lambda at, rows: {rows[0]: error} if at == "step" and worker.steps == 10 else {}
    made: list[tuple[bool, list[int]]] = []
    engine = DecodeEngine(
        worker, lambda *asked: made.append(asked) or Letters(), frozenset({EOS}), 1, callers.emit
    )
    engine.submit(wanted, caller)
    assert made == [(True, wanted.prompt.tolist())], "the text continues the prompt's"
    callers.wait(lambda: caller in callers.ends)
    engine.close()
    assert callers.ends[caller] == "cancelled" or isinstance(callers.ends[caller], RequestError)
    tokens = callers.tokens[caller]
    assert 8 <= len(tokens) <= 12
    assert callers.texts[caller] == letters[: len(tokens)]


def test_a_sequence_whose_text_cannot_be_made_still_gets_its_error() -> None:
    """Nor does it take the engine with it, when what it holds back cannot be made either."""

    class Broken(Letters):
        def push(self, token: int) -> str:
            raise OverflowError("secret")

        def flush(self) -> str:
            raise OverflowError("secret again")

    worker, callers, failures = HashWorker(), Callers(), []
    made = iter([Broken(), Letters()])
    engine = DecodeEngine(
        worker, lambda skip, prompt: next(made), frozenset({EOS}), 2, callers.emit, on_failure=failures.append
    )
    bad, good = Caller(0), Caller(1)
    for caller in (bad, good):
        engine.submit(long_call(3), caller)
    callers.wait(lambda: len(callers.ends) == 2)
    engine.close()
    assert_all_is_free(engine, worker)
    assert isinstance(callers.ends[bad], RequestError)
    assert [str(failure) for failure in failures] == ["secret", "secret again"]
    assert_as_alone(callers, good, long_call(3))


def test_an_engine_with_nothing_to_launch_polls_and_then_sleeps() -> None:
    """While offloads are in flight it polls; with nothing to wait for it blocks."""
    worker, callers = HashWorker(), Callers()
    landed = threading.Event()
    drained = worker.drained
    worker.drained = lambda seq_index: drained(seq_index) and landed.is_set()  # type: ignore[method-assign]
    asked: list[tuple[bool, bool, bool]] = []
    with running(worker, callers) as engine:
        take = engine._inbox.take

        def take_and_note(idle: bool, poll: bool) -> Any:
            with callers.changed:
                asked.append((landed.is_set(), idle, poll))
                callers.changed.notify_all()
            return take(idle, poll)

        engine._inbox.take = take_and_note  # type: ignore[method-assign]
        engine.submit(long_call(1), Caller(0))
        callers.wait(lambda: len(asked) >= 20)
        landed.set()
        callers.wait(lambda: bool(callers.ends) and asked[-1][1])
    polled = [poll for ready, _, poll in asked if not ready]
    assert polled[:3] != [True] * 3
    assert all(polled[3:])
    assert [idle for _, idle, _ in asked[1:]].count(True) == 1


def test_a_deadline_is_its_own_sequence_s() -> None:
    callers, name, wanted = Callers(), Caller(0), long_call(1, deadline=1e12)
    with running(HashWorker(), callers) as engine:
        engine._deadlines.watch(0.0, id(name))  # left by one whose reply_to had the same address
        engine.submit(wanted, name)
    assert_as_alone(callers, name, wanted)


def test_a_call_that_waits_too_long_expires_but_none_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """`start_by` bounds the wait in the queue alone: four run past theirs, the fifth starts too late."""
    now = [0.0]
    monkeypatch.setattr(engine_module, "time", SimpleNamespace(monotonic=lambda: now[0]))
    worker, callers = HashWorker(), Callers()
    gate = Gate(20, 4)
    worker.on_step = gate.on_step
    calls = [replace(long_call(i, max_tokens=32), start_by=1.0) for i in range(5)]
    names = [Caller(i) for i in range(5)]
    with running(worker, callers, quantum=0) as engine:
        for name, wanted in zip(names[:4], calls[:4], strict=True):
            engine.submit(wanted, name)
        gate.wait()
        engine.submit(calls[4], names[4])
        now[0] = 1.0
        gate.open.set()
    end = callers.ends[names[4]]
    assert isinstance(end, RequestError)
    assert end.message == "Request timeout expired in the queue"
    assert engine.stats().late == 1
    for name, wanted in zip(names[:4], calls[:4], strict=True):
        assert_as_alone(callers, name, wanted)


# Controls: errors that these tests must find.


class Mixing(HashWorker):
    """Swaps the tokens of two rows, once."""

    def _decode(self, rows: DecodeBatch, pages: Any) -> list[int]:
        tokens = super()._decode(rows, pages)
        return tokens[::-1] if self.steps == 20 else tokens


class Leaking(HashWorker):
    """Reads the pages of another sequence, once."""

    def _decode(self, rows: DecodeBatch, pages: Any) -> list[int]:
        return super()._decode(rows, pages[::-1] if self.steps == 20 else pages)


class Forgetting(HashWorker):
    """Reports offloads as landed that have not."""

    def drained(self, seq_index: int) -> bool:
        super().drained(seq_index)
        return True


@pytest.mark.parametrize("broken", [Mixing, Leaking, Forgetting])
def test_control_a_broken_worker_is_found(broken: type[HashWorker]) -> None:
    worker, callers = broken(delay=6), Callers()
    calls = {Caller(i): long_call(i, prompt=20) for i in range(8)}
    with pytest.raises(AssertionError), running(worker, callers, quantum=3) as engine:  # noqa: PT012
        with engine._inbox._changed:  # or the first might end before the last is there
            for name, wanted in calls.items():
                engine.submit(wanted, name)
        callers.wait(lambda: len(callers.ends) == len(calls))
        assert_all_as_alone(callers, calls)


@pytest.mark.parametrize("spoiled", [False, True])
def test_blocks_are_taken_from_a_sequence_only_if_its_window_is_still_there(
    spoiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """spoiled: the control; a sequence goes back to where newer tokens have taken the place of its window."""
    if spoiled:
        monkeypatch.setattr(Windows, "has", lambda *going_back: True)
    worker, callers = HashWorker(WINDOWED, delay=3), Callers()
    # The second ends when the newest has given up a block.
    calls = {Caller(i): long_call(i, prompt=10, max_tokens=32 if i == 1 else 70) for i in range(4)}

    def run() -> None:
        with running(worker, callers, quantum=0) as engine:
            run_all(engine, callers, calls)
        assert_all_as_alone(callers, calls)

    if spoiled:
        with pytest.raises(AssertionError):
            run()
        assert "not the window before a token" in worker.violations
    else:
        run()


class GatedGrammar:
    """Its masks are there only when the gate is open."""

    def __init__(self, gate: threading.Event, fails_at: int = 10**9) -> None:
        self.gate, self.fails_at, self.tokens = gate, fails_at, []  # type: ignore[var-annotated]

    def mask(self) -> Any:
        return np.full(2, -1, np.int32)

    def advance(self, token: int) -> Any:
        assert self.gate.wait(TIMEOUT_S)
        self.tokens.append(token)
        if len(self.tokens) == self.fails_at:
            raise RequestError("the grammar is too complex")
        return self.mask()


def constrained(grammar: GatedGrammar, max_tokens: int = 12) -> DecodeCall:
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    return DecodeCall(np.array([5, 6], np.int32), params, math.inf, grammar=grammar, mask=grammar.mask())


def test_a_sequence_waits_for_its_mask_and_others_do_not() -> None:
    worker, callers, gate = HashWorker(), Callers(), threading.Event()
    masked: list[tuple[int, int]] = []
    worker.on_step = lambda rows: masked.append(
        (len(rows.seq_indices), 0 if rows.sampling.masks is None else len(rows.sampling.masks.rows))
    )
    grammar = GatedGrammar(gate)
    call, free = constrained(grammar), DecodeCall(np.array([9], np.int32), FREE, math.inf)
    with running(worker, callers) as engine:
        engine.submit(call, slow := Caller(0))
        callers.wait(lambda: len(callers.tokens.get(slow, [])) == 1)
        engine.submit(free, fast := Caller(1))
        callers.wait(lambda: fast in callers.ends)
        assert callers.tokens[slow] == alone(call)[0][:1], "it goes on without its mask"
        gate.set()
        callers.wait(lambda: slow in callers.ends)
    assert callers.tokens[slow] == alone(call)[0] == [*grammar.tokens, callers.tokens[slow][-1]]
    assert callers.tokens[fast] == alone(free)[0]
    assert sum(rows for _, rows in masked) == 11, "one mask for each token after the first"


def test_a_grammar_that_fails_ends_its_own_sequence() -> None:
    worker, callers, gate = HashWorker(), Callers(), threading.Event()
    gate.set()
    with running(worker, callers) as engine:
        engine.submit(constrained(GatedGrammar(gate, fails_at=3)), bad := Caller(0))
        engine.submit(constrained(GatedGrammar(gate)), good := Caller(1))
        callers.wait(lambda: len(callers.ends) == 2)
    assert len(callers.tokens[bad]) == 3
    assert isinstance(callers.ends[bad], RequestError)
    assert callers.ends[good] == "length"


FREE = SamplingParams(max_tokens=30, ignore_eos=True)
