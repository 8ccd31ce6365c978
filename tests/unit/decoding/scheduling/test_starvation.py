"""Large sequences and a stream of small ones share a pool that is full: none waits for long, and all get on.

The engine runs over a `HashWorker` with the pools of SELECTOR=dense; time is counted in steps.
"""

import threading
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from hiscore.decoding.engine.engine import DecodeEngine
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE
from hiscore.decoding.interface.worker import DecodeBatch
from hiscore.decoding.pools.block_manager import BlockManager
from hiscore.decoding.scheduling import starvation
from hiscore.decoding.scheduling.preemption import PreemptionPolicy
from hiscore.decoding.scheduling.scheduler import MAX_OVERTAKEN
from hiscore.decoding.scheduling.starvation import StarvationGuard
from hiscore.decoding.sequence import DecodeCall, Output, Sequence, Status
from hiscore.errors import RequestError
from tests.support.decode_worker import TINY, HashWorker, alone
from tests.support.timeouts import TIMEOUT_S
from tests.unit.decoding.engine.test_engine import Caller, assert_all_is_free, long_call
from tests.unit.decoding.scheduling.test_scheduler import Drive, sequence

# 100 blocks of 16 tokens; a large sequence needs 97 of them in the end.
FULL = replace(
    TINY, dense=True, prompts_in="dense", page_size=STAGING_PAGE_SIZE, host_pages=100, staging_pages=0,
    device_pages=0, max_sequences=8, prefill_token_budget=128, context_length=1600,
)  # fmt: skip
LARGE = {"prompt": 100, "max_tokens": 1440}
# Two of these fill twice as many blocks from the start, nearly all with their prompts; each may have all of them.
LONG_PROMPT = {"prompt": 1500, "max_tokens": 1600}
MOST_STEPS = 10_000


@dataclass
class Load:
    """Large requests that come first, and callers with small ones, each of which calls again once it is served.

    prompt: tokens of their prompts, to which each asks for 8 more; since: the step at which they begin to call;
    waits, ends: steps from each small call to its end, and at which the large ones ended; repeated: tokens that
    were fed more than once.
    """

    larges: int
    callers: int
    prompt: int
    large: dict[str, int] = field(default_factory=lambda: LARGE)
    since: int = LARGE["max_tokens"] // 2
    waits: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    repeated: int = 0
    engine: DecodeEngine = field(init=False)

    def run(self) -> "Load":
        blocks = sum(self.large.values()) // STAGING_PAGE_SIZE + 4
        tokens = blocks * STAGING_PAGE_SIZE
        self.worker = HashWorker(replace(FULL, context_length=tokens, host_pages=blocks))
        self.worker.on_step = self._on_step
        self._calls: dict[Any, tuple[DecodeCall, int]] = {}
        self._tokens: dict[Any, list[int]] = {}
        self._done, failures = threading.Event(), []

        def on_death(error: Exception) -> None:
            failures.append(error)
            self._done.set()

        policy = PreemptionPolicy()
        self.engine = DecodeEngine(
            self.worker, None, frozenset(), 100, self._emit, on_failure=on_death, preemption_policy=policy
        )
        self._larges = [Caller(-1 - number) for number in range(self.larges)]
        for caller in self._larges:
            self._submit(caller, long_call(caller.name % 61, **self.large))
        assert self._done.wait(TIMEOUT_S)
        self.engine.close()
        assert not failures
        assert_all_is_free(self.engine, self.worker)
        return self

    def _submit(self, caller: Any, call: DecodeCall) -> None:
        self._calls[caller], self._tokens[caller] = (call, self.worker.steps), []
        self.engine.submit(call, caller)

    def _on_step(self, rows: DecodeBatch) -> None:
        if self.worker.steps == self.since:
            for number in range(self.callers):
                self._submit(Caller(number), long_call(number, self.prompt, 8))
        if rows.forced is not None:
            self.repeated += int((rows.forced >= 0).sum())
        if self.worker.steps == MOST_STEPS:
            for caller in self._larges:
                self.engine.cancel(caller)

    def _emit(self, caller: Any, output: Output | RequestError) -> None:
        assert isinstance(output, Output), output
        self._tokens[caller] += output.token_ids
        if not output.finish_reason:
            return
        call, since = self._calls.pop(caller)
        now, is_large = self.worker.steps, caller in self._larges
        if output.finish_reason == "length":
            assert self._tokens[caller] == alone(call)[0]
            (self.ends if is_large else self.waits).append(now if is_large else now - since)
        if not is_large and len(self.ends) < self.larges and now < MOST_STEPS:
            self._submit(caller, call)
        if not self._calls:
            self._done.set()

    @property
    def bound(self) -> int:
        """Steps that a small call may wait.

        Its wait; twice the tokens of the blocks that it takes, which are its own, one for growth and what is
        left of one; and all callers one after the other, each with its prompt, its tokens and waits for copies.
        """
        blocks = -(-(self.prompt + 8) // STAGING_PAGE_SIZE) + 2
        forwards = -(-self.prompt // FULL.prefill_token_budget)
        return 64 + 2 * blocks * STAGING_PAGE_SIZE + self.callers * (forwards + 8 + 10)


LOADS = pytest.mark.parametrize(("larges", "callers", "prompt"), [(2, 1, 60), (3, 4, 250)])


def assert_bounded(load: Load) -> None:
    """Nobody waits for long, and the large ones end."""
    assert max(load.waits) <= load.bound
    # One after the other; at least half of their steps stay, and small ones have the rest.
    steps = load.larges * load.large["max_tokens"]
    assert len(load.ends) == load.larges
    assert load.ends[-1] <= 2 * steps
    assert load.repeated < steps


@pytest.mark.slow
@LOADS
def test_small_ones_wait_for_what_they_take_as_others_go_on(larges: int, callers: int, prompt: int) -> None:
    assert_bounded(Load(larges, callers, prompt).run())


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True])
def test_room_that_was_taken_of_a_prompt_is_not_kept_for_it_until_another_large_one_ends(
    kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kept: the control, whoever is younger counts as one that ends soon."""
    if kept:
        monkeypatch.setattr(PreemptionPolicy, "is_short", lambda *args: True)
    load = Load(2, 1, 250, LONG_PROMPT, since=20).run()
    if kept:
        assert max(load.waits) > 1.5 * load.bound
    else:
        assert_bounded(load)


@pytest.mark.slow
@LOADS
@pytest.mark.exhaustive
def test_control_nothing_is_taken_from_large_ones(
    larges: int, callers: int, prompt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(starvation, "can_spare", lambda holder, lost: False)
    load = Load(larges, callers, prompt).run()
    assert max(load.waits) > 1.5 * load.bound


@pytest.mark.exhaustive
@pytest.mark.parametrize("whole", [False, True])
def test_control_all_that_is_wanted_is_taken(whole: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then they repeat for ever what they have done. whole: all of it, even."""
    monkeypatch.setattr(starvation, "can_spare", lambda holder, lost: True)
    blocks_kept = BlockManager.blocks_kept
    if whole:
        monkeypatch.setattr(BlockManager, "blocks_kept", lambda *args: 0 if args[-1] else blocks_kept(*args))
    load = Load(1, 4, 250).run()
    assert load.ends == []
    assert load.repeated > LARGE["max_tokens"]


# Room on the device for 800 tokens. A large sequence waits until one that runs ends: both do not fit.
DEVICE = replace(
    TINY, context_length=800, host_pages=4000, device_pages=200, staging_pages=200, max_sequences=20,
    prefill_token_budget=128,
)  # fmt: skip


def kept_room(drive: Drive) -> Sequence:
    drive.scheduler._starvation._policy = PreemptionPolicy()
    drive.start(sequence(prompt=340, max_tokens=440, sparse=False))
    drive.add(large := sequence(prompt=480, max_tokens=300, sparse=False))
    drive.go()
    large.turn.times_overtaken = MAX_OVERTAKEN
    return large


@pytest.mark.parametrize("keeps", [False, True])
def test_room_kept_in_vain_is_lent_to_small_ones(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """keeps: the control, it never is."""
    if keeps:
        monkeypatch.setattr(StarvationGuard, "_fits_without_younger", lambda *args: True)
    drive = Drive(DEVICE)
    large = kept_room(drive)
    drive.add(small := sequence(prompt=40, max_tokens=6, sparse=False))
    waited = drive.until(small, Status.FINISHED)
    # Its wait, its steps, and waits for copies.
    assert (waited > 400) if keeps else (64 <= waited <= 64 + 6 + 10)
    drive.until(large, Status.FINISHED)


@pytest.mark.slow
@pytest.mark.parametrize("always", [False, True])
def test_what_is_lent_comes_back_when_it_is_of_use(always: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """always: the control, small ones that come at every step have it for ever."""
    if always:
        monkeypatch.setattr(StarvationGuard, "_fits_without_younger", lambda *args: False)
    drive = Drive(DEVICE)
    large = kept_room(drive)
    for _ in range(900):
        drive.add(*(sequence(prompt=40, max_tokens=6, sparse=False) for _ in range(2)))
        drive.go()
        if large.status is not Status.WAITING:
            break
    assert (large.status is Status.WAITING) == always
