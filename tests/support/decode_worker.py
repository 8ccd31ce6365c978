"""A worker without a model, for tests of scheduling: the next token is a hash of all tokens in its memory.

It has the pools of a real one, in plain arrays, and a device that lags: launched work is done only when a
result is awaited or `drained` is asked. Freed memory is poisoned, so a sequence that reads the wrong pages, or
too late, gives other tokens than alone. Violations of the interface are recorded in `violations` as well.
"""

import hashlib
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, count
from typing import Any

import numpy as np

from hiscore.arrays import Int32, Int64
from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, CacheConfig
from hiscore.decoding.interface.prefix import Prefix
from hiscore.decoding.interface.sampling_batch import SamplingBatch
from hiscore.decoding.interface.worker import (
    NO_PAGES,
    Admission,
    DecodeBatch,
    ForwardResult,
    Growth,
    PrefillChunk,
)
from hiscore.decoding.pools.prompt_pages import staging_pages_in
from hiscore.decoding.requests.sampling_params import SamplingParams
from hiscore.decoding.requests.stop_strings import StopChecker
from hiscore.decoding.scheduling.batch import uniform
from hiscore.decoding.scheduling.preemption import PreemptionPolicy
from hiscore.decoding.sequence import DecodeCall, Sequence

VOCABULARY = 61
EOS = 7
POISON = -9

TINY = CacheConfig(
    page_size=4, lru_pages=3, ring_pages=2, host_pages=160, device_pages=20, staging_pages=8, max_sequences=4,
    prefill_token_budget=24, context_length=120,
)  # fmt: skip

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"dense": True},
    {"resident_if_it_fits": True},
    {"dense": True, "prompts_in": "dense", "page_size": STAGING_PAGE_SIZE, "staging_pages": 0},
    {
        "resident_if_it_fits": True, "prompts_in": "buffers", "page_size": STAGING_PAGE_SIZE, "staging_pages": 0,
        "lru_pages": 2, "ring_pages": 1, "device_pages": 16, "reserved_pages": 8,
    },
    {"dense": True, "window_pages": 8, "window_ring": 3, "window": 10},
    {"resident_if_it_fits": True, "window_pages": 30, "window_ring": 5, "window": 17},
    {
        "resident_if_it_fits": True, "prompts_in": "buffers", "page_size": STAGING_PAGE_SIZE, "staging_pages": 0,
        "lru_pages": 2, "ring_pages": 1, "device_pages": 16, "reserved_pages": 8, "window_pages": 8,
        "window_ring": 3, "window": 30,
    },
    {"resident_if_it_fits": True, "state_slots": 4},
    {"dense": True, "prompts_in": "dense", "page_size": STAGING_PAGE_SIZE, "staging_pages": 0, "state_slots": 7},
)  # fmt: skip
"""Of `CacheConfig`: sequences select, attend to everything, or do both in turn; the latter two also without a
staging pool, with layers that keep a window only, and with recurrent ones."""


def preempt_after(steps: int) -> PreemptionPolicy:
    """Every sequence waits so many steps before it preempts another; 0: none ever does."""
    return PreemptionPolicy(factor=0, least=steps, most=steps)


def next_token(tokens: Int32, temperature: float, draw: float) -> int:
    digest = hashlib.blake2b(np.ascontiguousarray(tokens, np.int32).tobytes(), digest_size=8).digest()
    drawn = int(draw * VOCABULARY) if temperature > 0 else 0
    return (int.from_bytes(digest, "little") + drawn) % VOCABULARY


def traces(tokens: Int32) -> Int32:
    """What is in windowed layers of int32 [n] tokens: a number for each that depends on all before it."""
    found = accumulate(tokens.tolist(), lambda trace, token: (31 * trace + token + 1) % 2**31, initial=1)
    return np.array([*found][1:], np.int32)


def alone(call: DecodeCall) -> tuple[list[int], str]:
    """The tokens and the finish reason of a call, without any scheduling."""
    tokens, options = [int(token) for token in call.prompt], call.params
    ends = options.stop_token_ids | (set() if options.ignore_eos else {EOS})
    for position in range(len(tokens), len(tokens) + options.max_tokens):
        draw = float(uniform(options.seed, position))
        tokens.append(next_token(np.array(tokens, np.int32), options.temperature, draw))
        if tokens[-1] in ends:
            return tokens[len(call.prompt) :], "stop"
    return tokens[len(call.prompt) :], "length"


def sequence_of(
    prompt: int = 1, reply_to: Any = None, deadline: float = math.inf, **options: Any
) -> Sequence:
    """A sequence of the prompt 0, 1, 2 and so on.

    options: Its call's other times, and its sampling parameters.
    """
    times = {name: options.pop(name) for name in ("start_by", "arrived") if name in options}
    params = SamplingParams(**options)
    call = DecodeCall(np.arange(prompt, dtype=np.int32), params, deadline, **times)
    return Sequence(call, reply_to, StopChecker(params, frozenset()))


@dataclass
class Held:
    staging: Int32
    filled: int = 0  # tokens in staging
    whole: bool = False  # its prompt has been prefilled, or it has been restored
    length: int = -1  # tokens fed; -1: not admitted
    host: Int32 = field(default_factory=lambda: NO_PAGES)
    device: Int32 = field(default_factory=lambda: NO_PAGES)
    window: Int32 = field(default_factory=lambda: NO_PAGES)
    state_slot: int = -1
    unread: int = 0  # launches whose result has not been read


@dataclass
class Task:
    number: int
    seq_indices: list[int]
    work: Callable[[], None]


@dataclass
class Copy:
    """A copy to the host that takes some ticks."""

    seq_index: int
    work: Callable[[], None]
    ticks: int


class HashWorker:
    """See `hiscore.decoding.interface.worker.Worker`. delay: ticks that each copy to the host takes."""

    def __init__(self, cache_config: CacheConfig = TINY, delay: int = 0) -> None:
        self.cache_config = cache_config
        self.delay = delay
        self.violations: list[str] = []
        self.prefilled_tokens = self.fetched_tokens = self.restores = self.steps = 0
        self.on_step: Callable[[DecodeBatch], None] = lambda rows: None
        self.fail: Callable[[str, list[int]], Exception | int | None] = lambda call, seq_indices: None
        self.failures: Callable[[str, list[int]], dict[int, Exception]] = lambda call, seq_indices: {}
        self.sequences: dict[int, Held] = {}
        self.kept: dict[bytes, Held] = {}  # preempted, by their pages on the host
        self._indexed: set[int] = set()  # host pages of all that were admitted
        self._copies: list[Copy] = []
        self._fed: list[Int32] = []  # tokens of each row of the step
        self._tasks: deque[Task] = deque()
        self._numbers = count()
        self._staging = np.full(cache_config.prompt_pages * STAGING_PAGE_SIZE, POISON, np.int32)
        self._host = np.full(cache_config.host_pages * cache_config.page_size, POISON, np.int32)
        self._window = np.full(cache_config.window_pages * cache_config.page_size, POISON, np.int32)
        # Traces of the tokens before each state.
        self._states = np.full(cache_config.state_slots, POISON, np.int32)
        self._newest = np.full(cache_config.max_sequences, POISON, np.int32)
        self._tails: dict[int, dict[int, int]] = {}  # of each sequence: what has not landed, by position

    def prefill(self, chunks: list[PrefillChunk], sampling: SamplingBatch) -> "Pending":
        self._raise("prefill", [chunk.seq_index for chunk in chunks])
        tokens = sum(len(chunk.tokens) for chunk in chunks)
        self._check(tokens <= self.cache_config.prefill_token_budget, "prefill exceeds its token budget")
        last = [chunk for chunk in chunks if chunk.is_last]
        self._check(len(last) == len(sampling.uniforms), "not one row of sampling for each prompt that ends")
        for chunk in chunks:
            if chunk.start == 0:
                self._check(chunk.seq_index not in self.sequences, f"seq_index {chunk.seq_index} is taken")
                self._own_staging(chunk.seq_index, chunk.staging_pages)
            if not len(self.sequences[chunk.seq_index].host):
                self._own("host", chunk.seq_index, chunk.host_pages)
            held = self.sequences[chunk.seq_index]
            self._own_windows(chunk.seq_index, 0, chunk.window_pages)
            self._own_windows(chunk.seq_index, chunk.start // self.cache_config.page_size, chunk.into_windows)
            self._check(np.array_equal(held.host, chunk.host_pages), "other pages on the host")
            self._check(len(chunk.tokens) > 0 and chunk.start == held.filled, "not the next part of a prompt")
            self._check(not held.whole, "prefilled again")
            held.filled += len(chunk.tokens)
            held.whole = chunk.is_last
            self.prefilled_tokens += len(chunk.tokens)
        return self._launch(
            "prefill", [chunk.seq_index for chunk in chunks], lambda: self._fill(chunks, sampling)
        )

    def fetch(self, prefix: Prefix) -> None:
        seq_index, page = prefix.seq_index, self.cache_config.page_size
        self._raise("fetch", [seq_index])
        self._check(seq_index not in self.sequences, f"index {seq_index} is taken")
        self._check(prefix.tokens == len(prefix.source_pages) * page, "not whole pages")
        self._check(self._indexed.issuperset(prefix.source_pages.tolist()), "found, but in no index")
        self._own_staging(seq_index, prefix.staging_pages)
        self.sequences[seq_index].filled = prefix.tokens
        own = np.repeat(prefix.source_pages != prefix.host_pages, page)

        missing = np.repeat(~prefix.on_device, page)
        self.fetched_tokens += int(missing.sum())

        def work() -> None:
            slots = _slots(prefix.staging_pages, STAGING_PAGE_SIZE)[: prefix.tokens]
            self._staging[slots[missing]] = self._on_host(prefix.source_pages)[missing]
            if self.cache_config.state_slots:
                self._states[prefix.state_slot] = self._states[prefix.source_state]
            tokens = self._staging[slots]
            self._tails[seq_index] = {at: int(tokens[at]) for at in np.flatnonzero(own).tolist()}
            if own.any():
                self._copy(seq_index, prefix.host_pages, dict(self._tails[seq_index]))

        self._task([seq_index], work)

    def restore(
        self, seq_index: int, length: int, host_pages: Int32, staging_pages: Int32, pages: Int64 | None = None
    ) -> None:
        self._raise("restore", [seq_index])
        self._check(seq_index not in self.sequences, f"index {seq_index} is taken")
        kept = None
        if not self.cache_config.prefix_cache:
            kept = self._take_kept(host_pages)
            self._check(kept is not None and kept.length == length, "restored is not what was preempted")
        self._own_staging(seq_index, staging_pages)
        held = self.sequences[seq_index]
        held.filled, held.whole = length, True
        held.window = kept.window if kept is not None else NO_PAGES
        self._own("host", seq_index, host_pages)
        self.restores += 1

        def work() -> None:
            if pages is None:
                tokens = self._on_host(host_pages)[:length]
            else:
                tokens = self._on_host(host_pages[pages])
                tokens = tokens[: len(tokens) - -length % self.cache_config.page_size]
            self._staging[_slots(staging_pages, STAGING_PAGE_SIZE)[: len(tokens)]] = tokens

        self._task([seq_index], work)

    def admit(self, admission: Admission) -> None:
        self._raise("admit", [admission.seq_index])
        seq_index, length = admission.seq_index, admission.length
        held = self.sequences[seq_index]
        restored = admission.first_token is not None
        self._check(held.whole and held.length < 0 and held.filled == length, "admitted too early, or twice")
        self._check(
            len(admission.host_pages) * self.cache_config.page_size > length, "too few pages on the host"
        )
        self._check(np.array_equal(admission.staging_pages, held.staging), "other staging pages")
        self._check(np.array_equal(admission.host_pages, held.host), "other pages on the host")
        self._own("device", seq_index, admission.device_pages)
        self._own_windows(seq_index, 0, admission.window_pages)
        self._indexed |= {*held.host.tolist()}
        held.length, held.state_slot = length, admission.state_slot

        def work() -> None:
            if restored:
                self._newest[seq_index] = admission.first_token
                self._tails[seq_index] = {}

        self._task([seq_index], work)

    def grow(self, growths: list[Growth]) -> None:
        self._raise("grow", [each.seq_index for each in growths])
        for each in growths:
            held = self.sequences[each.seq_index]
            self._check(held.length >= 0, "not admitted")
            self._check(
                held.length == each.start * self.cache_config.page_size, "grown too early, or too late"
            )
            self._own_windows(each.seq_index, each.start, each.window_pages)
            self._check(len(each.host_pages) > 0, "nothing to grow by")
            self._check(each.start == len(held.host), "pages that do not follow those it has")
            whole = len(held.device) == len(held.host)
            self._own("host", each.seq_index, np.concatenate((held.host, each.host_pages)))
            self._check_windows(held)
            self._indexed |= {*each.host_pages.tolist()}
            if each.spilled is None:
                self._own("device", each.seq_index, np.concatenate((held.device, each.device_pages)))
            else:
                self._check(whole, "spilled twice")
                lru, ring = self.cache_config.lru_pages, self.cache_config.ring_pages
                self._check(len(each.device_pages) == lru + ring, "not a full buffer")
                self._check(
                    np.array_equal(each.device_pages[: each.spilled], held.device[: each.spilled]), "LRU"
                )
                for page in range(max(0, each.start - ring + 1), each.start):
                    self._check(each.device_pages[lru + page % ring] == held.device[page], "not in its place")
                self._own("device", each.seq_index, each.device_pages)
            device = len(held.device)
            self._check(
                device in (0 if self.cache_config.dense else len(held.host), self.cache_config.buffer_pages),
                "neither resident nor a full buffer",
            )

    def step(self, rows: DecodeBatch) -> "Pending":
        seq_indices = rows.seq_indices.tolist()
        self.on_step(rows)
        self._raise("step", seq_indices)
        self._check(0 < len(seq_indices) == len(set(seq_indices)), "a sequence twice in a step, or none")
        for seq_index, position in zip(seq_indices, rows.positions.tolist(), strict=True):
            held = self.sequences.get(seq_index)
            self._check(held is not None and held.length >= 0, f"sequence {seq_index} was not admitted")
            self._check(position == held.length, "not the next position")
            self._check(
                position < len(held.host) * self.cache_config.page_size, "beyond the pages on the host"
            )
            held.length += 1
        self.steps += 1
        pages = [self.sequences[seq_index].host for seq_index in seq_indices]
        in_place = [self._in_place(self.sequences[seq_index]) for seq_index in seq_indices]
        windows = [self.sequences[seq_index].window for seq_index in seq_indices]
        states = [self.sequences[seq_index].state_slot for seq_index in seq_indices]

        def work() -> list[int]:
            tokens = self._decode(rows, pages)
            for row, position in enumerate(rows.positions.tolist()):
                self._see_window(windows[row], position, self._fed[row])
                self._see_in_place(in_place[row], position, self._fed[row])
                self._go_on_from_state(states[row], position, self._fed[row])
            return tokens

        return self._launch("step", seq_indices, work)

    def drained(self, seq_index: int) -> bool:
        self._raise("drained", [seq_index])
        if self._tasks:
            self._tasks.popleft().work()
        self._tick()
        drained = self._is_drained(seq_index)
        if drained and seq_index in self.sequences and self.sequences[seq_index].length >= 0:
            self.sequences[seq_index].staging = NO_PAGES
        return drained

    def release(self, seq_index: int, host_pages: Int32, device_pages: Int32) -> None:
        self._raise("release", [seq_index])
        if seq_index < 0:
            kept = self._take_kept(host_pages, from_end=True)
            self._check(kept or self.cache_config.prefix_cache, "no preempted sequence holds them")
            if kept:
                self._keep(kept, host_pages)
        else:
            held = self.sequences.pop(seq_index, None)
            if held is None:
                self._take_kept(host_pages)  # it could not be restored
            else:
                self._check(held.unread == 0, "released with a launch that has not been read")
                self._check(self._is_drained(seq_index), "released with copies in flight")
                if self.cache_config.prefix_cache:  # what can be found again is not given up
                    known = held.length < 0 or np.isin(host_pages, held.host).all()
                    self._check(known, "not its host pages")
                    known = held.length < 0 or np.isin(device_pages, held.device).all()
                    self._check(known, "not its device pages")
                else:
                    known = held.length < 0 or np.array_equal(held.device, device_pages)
                    self._check(known, "not its device pages")
                    last = len(host_pages) == 0 or np.array_equal(held.host[-len(host_pages) :], host_pages)
                    self._check(held.length < 0 or last, "not its last host pages")
                    if held.length >= 0:
                        self._keep(held, host_pages)
        slots = _slots(host_pages, self.cache_config.page_size)
        lost = {"buffers": device_pages, "dense": host_pages}.get(self.cache_config.prompts_in, NO_PAGES)
        staging_slots = _slots(staging_pages_in(lost, self.cache_config), STAGING_PAGE_SIZE)

        def work() -> None:
            self._host[slots] = POISON
            self._staging[staging_slots] = POISON
            if seq_index >= 0:
                self._newest[seq_index] = POISON
                self._tails.pop(seq_index, None)

        self._task([], work)

    def _fill(self, chunks: list[PrefillChunk], sampling: SamplingBatch) -> list[int]:
        for chunk in chunks:
            self._see_before(chunk)
        for chunk in chunks:
            slots = _slots(chunk.staging_pages, STAGING_PAGE_SIZE)
            self._staging[slots[chunk.start : chunk.end]] = chunk.tokens
            self._go_on_from_state(chunk.state_slot, chunk.start, self._staging[slots[: chunk.end]])
            for place, slot in chunk.snapshots.items():
                self._check(chunk.start < place <= chunk.end, "a snapshot of other tokens")
                self._states[slot] = traces(self._staging[slots[:place]])[-1]
            self._fill_window(chunk, self._staging[slots[: chunk.end]])
            if len(chunk.host_pages):
                self._offload(chunk, self._staging[slots[: chunk.end]].tolist())
        sampled = []
        for row, chunk in enumerate(chunk for chunk in chunks if chunk.is_last):
            prompt = self._staging[_slots(chunk.staging_pages, STAGING_PAGE_SIZE)[: chunk.end]]
            sampled.append(self._sample(chunk.seq_index, prompt, sampling, row))
        return sampled

    def _offload(self, chunk: PrefillChunk, staged: list[int]) -> None:
        """Offload whole pages, and the rest at the prompt's end."""
        page = self.cache_config.page_size
        begin, end = chunk.start // page * page, chunk.end if chunk.is_last else chunk.end // page * page
        if chunk.start == 0:
            self._tails[chunk.seq_index] = {}
        self._tails[chunk.seq_index].update(enumerate(staged[chunk.start :], chunk.start))
        self._copy(chunk.seq_index, chunk.host_pages, {at: staged[at] for at in range(begin, end)})

    def _decode(self, rows: DecodeBatch, pages: list[Int32]) -> list[int]:
        sampled, self._fed = [], []
        for row, (seq_index, position) in enumerate(
            zip(rows.seq_indices.tolist(), rows.positions.tolist(), strict=True)
        ):
            tail = self._tails[seq_index]
            if rows.forced is not None and rows.forced[row] >= 0:
                self._newest[seq_index] = rows.forced[row]
            tail[position] = int(self._newest[seq_index])
            tokens = self._on_host(pages[row])[: position + 1]
            tokens[list(tail)] = list(tail.values())
            self._fed.append(tokens)
            sampled.append(self._sample(seq_index, tokens, rows.sampling, row))
            self._copy(seq_index, pages[row], {position: tail[position]})
        self._tick()
        return sampled

    def _sample(self, seq_index: int, tokens: Int32, sampling: SamplingBatch, row: int) -> int:
        token = next_token(tokens, float(sampling.temperature[row]), float(sampling.uniforms[row]))
        self._newest[seq_index] = token
        return token

    def _go_on_from_state(self, slot: int, start: int, tokens: Int32) -> None:
        """The state of a sequence has seen its first `start` tokens, and then sees all of them."""
        if self.cache_config.state_slots:
            seen = traces(tokens)
            self._check(not start or self._states[slot] == seen[start - 1], "not the state before a token")
            self._states[slot] = seen[-1]

    def _see_before(self, chunk: PrefillChunk) -> None:
        """All rows see the window before them."""
        config = self.cache_config
        if config.window_ring:
            first = max(0, chunk.start - config.window + 1)
            slots = _slots(chunk.staging_pages, STAGING_PAGE_SIZE)[: chunk.start]
            seen = self._window[self._window_slots(chunk.window_pages, first, chunk.start)]
            expected = traces(self._staging[slots])[first:]
            self._check(np.array_equal(seen, expected), "not the window before a chunk")

    def _fill_window(self, chunk: PrefillChunk, tokens: Int32) -> None:
        """What is kept of rows overwrites what they have seen."""
        config = self.cache_config
        if config.window_ring:
            pages = np.concatenate((NO_PAGES, chunk.into_windows))
            offset = chunk.start // config.page_size * config.page_size
            at = self._window_slots(pages, chunk.start - offset, chunk.end - offset)
            self._window[at] = traces(tokens)[chunk.start :]

    def _in_place(self, held: Held) -> Int32:
        """The staging pages in which all of a sequence stays, if there are any."""
        config = self.cache_config
        if config.prompts_in == "dense":
            return staging_pages_in(held.host, config)
        is_whole = config.prompts_in == "buffers" and len(held.device) == len(held.host)
        return staging_pages_in(held.device, config) if is_whole else NO_PAGES

    def _see_in_place(self, pages: Int32, position: int, tokens: Int32) -> None:
        """A step's row writes its token where its sequence stays, and sees all of it there."""
        if len(pages):
            slots = _slots(pages, STAGING_PAGE_SIZE)[: position + 1]
            self._staging[slots[-1]] = tokens[-1]
            self._check(np.array_equal(self._staging[slots], tokens), "not all of a sequence where it stays")

    def _see_window(self, pages: Int32, position: int, tokens: Int32) -> None:
        """A step's row writes its token, and sees its window."""
        config = self.cache_config
        if config.window_ring:
            first = max(0, position - config.window + 1)
            at = self._window_slots(pages, first, position + 1)
            seen = traces(tokens)[first : position + 1]
            self._window[at[-1]] = seen[-1]
            self._check(np.array_equal(self._window[at], seen), "not the window before a token")

    def _window_slots(self, pages: Int32, start: int, end: int) -> Int32:
        positions, page = np.arange(start, end), self.cache_config.page_size
        at: Int32 = pages[positions // page] * page + positions % page
        return at

    def _own_windows(self, seq_index: int, start: int, pages: Int32) -> None:
        """These are its pages in windowed layers, from the `start`-th on; it may have others before its window."""
        held = self.sequences[seq_index]
        known = held.window[start : start + len(pages)]
        self._check(np.array_equal(known, pages[: len(known)]), "other pages of its window")
        held.window = np.concatenate((held.window[:start], pages, held.window[start + len(pages) :]))
        others = [each for other, each in self.sequences.items() if other != seq_index]
        taken = np.concatenate([NO_PAGES, *(each.window for each in (*others, *self.kept.values()))])
        self._check(not np.isin(pages, taken).any(), "a window page of another sequence")
        if held.length >= 0 and start == 0:
            self._check_windows(held)

    def _check_windows(self, held: Held) -> None:
        ring = self.cache_config.window_ring
        newest = np.unique(held.window[-ring:]) if ring else held.window
        self._check(len(held.window) == (len(held.host) if ring else 0), "not a place for each page")
        self._check(len(newest) == min(len(held.window), ring), "two pages of a window in one place")

    def _copy(self, seq_index: int, pages: Int32, tokens: dict[int, int]) -> None:
        tail = self._tails[seq_index]
        positions = np.array(list(tokens), np.int64)

        def work() -> None:
            self._host[_slots(pages, self.cache_config.page_size)[positions]] = list(tokens.values())
            for position in tokens:
                tail.pop(position, None)

        self._copies.append(Copy(seq_index, work, self.delay))
        self._land()

    def _tick(self) -> None:
        for copy in self._copies:
            copy.ticks -= 1
        self._land()

    def _land(self) -> None:
        for copy in [copy for copy in self._copies if copy.ticks <= 0]:
            copy.work()
            self._copies.remove(copy)

    def _is_drained(self, seq_index: int) -> bool:
        return not any(seq_index in task.seq_indices for task in self._tasks) and all(
            copy.seq_index != seq_index for copy in self._copies
        )

    def _keep(self, held: Held, given_up: Int32) -> None:
        """A preempted sequence has what is left on the host without its last pages."""
        held.device, held.host = NO_PAGES, held.host[: len(held.host) - len(given_up)]
        held.window = held.window[: len(held.host)]
        held.length = min(held.length, len(held.host) * self.cache_config.page_size)
        if len(held.host):
            self.kept[held.host.tobytes()] = held

    def _take_kept(self, host_pages: Int32, from_end: bool = False) -> Held | None:
        """The preempted sequence with these pages, to which some may have been added since.

        from_end: They are its last.
        """
        given = host_pages.tobytes()
        found = [
            pages for pages in self.kept if (pages.endswith(given) if from_end else given.startswith(pages))
        ]
        return self.kept.pop(found[0]) if found else None

    def _own(self, name: str, seq_index: int, pages: Int32) -> None:
        others = [each for other, each in self.sequences.items() if other != seq_index] + list(
            self.kept.values()
        )
        taken = np.concatenate([NO_PAGES, *(getattr(each, name) for each in others)])
        self._check(len(np.unique(pages)) == len(pages), f"a {name} page twice")
        shared = name == "host" and self.cache_config.prefix_cache and self.cache_config.dense
        self._check(shared or not np.isin(pages, taken).any(), f"a {name} page of another sequence")
        setattr(self.sequences[seq_index], name, pages)
        if name == "device" and self.cache_config.prompts_in == "buffers":
            self._check_staging(seq_index, staging_pages_in(pages, self.cache_config))

    def _own_staging(self, seq_index: int, pages: Int32) -> None:
        if not (self.cache_config.prompts_in == "dense" and self.cache_config.prefix_cache):
            self._check_staging(seq_index, pages)
        self.sequences[seq_index] = Held(pages)

    def _check_staging(self, seq_index: int, pages: Int32) -> None:
        """Nobody else has these staging pages, nor are they in the device pages that somebody else has."""
        for other, held in self.sequences.items():
            if other == seq_index:
                continue
            self._check(not np.isin(pages, held.staging).any(), f"a staging page of sequence {other}")
            if self.cache_config.prompts_in == "buffers":
                kept = staging_pages_in(held.device, self.cache_config)
                self._check(not np.isin(pages, kept).any(), f"a device page of sequence {other}")

    def _on_host(self, pages: Int32) -> Int32:
        return self._host[_slots(pages, self.cache_config.page_size)]

    def _task(self, seq_indices: list[int], work: Callable[[], None]) -> int:
        number = next(self._numbers)
        self._tasks.append(Task(number, seq_indices, work))
        return number

    def _launch(self, call: str, seq_indices: list[int], work: Callable[[], list[int]]) -> "Pending":
        held = [self.sequences[seq_index] for seq_index in seq_indices]
        for each in held:
            each.unread += 1
        pending = Pending(self, call, seq_indices, held)
        pending.number = self._task(seq_indices, lambda: pending.tokens.extend(work()))
        return pending

    def run_to(self, number: int) -> None:
        while self._tasks and self._tasks[0].number <= number:
            self._tasks.popleft().work()

    def _raise(self, call: str, seq_indices: list[int]) -> None:
        if isinstance(error := self.fail(call, seq_indices), Exception):
            raise error

    def _check(self, condition: object, message: str) -> None:
        if not condition:
            self.violations.append(message)
            raise AssertionError(message)


class Pending:
    def __init__(self, worker: HashWorker, call: str, seq_indices: list[int], held: list[Held]) -> None:
        self.worker, self.call, self.seq_indices, self.held = worker, call, seq_indices, held
        self.tokens: list[int] = []
        self.number = -1
        self.failures = worker.failures(call, seq_indices)

    def result(self) -> ForwardResult:
        self.worker.run_to(self.number)
        for each in self.held:
            each.unread -= 1
        answer = self.worker.fail(f"{self.call} result", self.seq_indices)
        if isinstance(answer, Exception):
            raise answer
        tokens = [answer if answer is not None else token for token in self.tokens]
        return ForwardResult(np.array(tokens, np.int32), hits=2, misses=1, offloaded_tokens=len(tokens))


def _slots(pages: Int32, page: int) -> Int32:
    return (pages[:, None] * page + np.arange(page, dtype=np.int32)).ravel()
