"""Pack the prompts of a batch into ragged forwards under a token budget, without padding.

The tokens of all prompts form one sequence: query, items, next query, next items. A forward is a slice of it with
at most `budget` tokens. Query tokens found in the prefix cache are left out, and prompts with the same query are
packed as one (`query_groups`).

A slice never ends within a block of keys that attention adds up at once, nor within a chunk of a recurrence: a
query or an item is cut at multiples of those only. So the order of a row's sums, and every bit of its result, is
the same however a batch is cut.

Attention follows one rule. A *segment* is a run of new tokens of one query or one item; consecutive segments that
see the same *context* form a *group*: a query alone, or the items of a prompt. A token sees the context of its
group and its own segment up to itself, nothing else. So no mask and no delimiter is needed, and no item can see
another. The context is the query: first what is in the KV pool (cached, or computed by an earlier forward of the
batch), then what is new in this forward.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from hiscore.arrays import Int64
from hiscore.attention.metadata import Forward, SegmentGroup
from hiscore.recurrence.metadata import CHUNK, ZERO_SLOT
from hiscore.scoring.packing.batch_rows import BatchRows
from hiscore.scoring.packing.longrope import LongropeTables
from hiscore.scoring.packing.packed_prompt import NO_STATES, Allocation, PackedPrompt, QueryStates
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.packing.query_groups import QueryGroup, grouped_by_query
from hiscore.scoring.packing.state_spans import StatesOfForward
from hiscore.scoring.requests.query_key import PAGE, QueryKey
from hiscore.scoring.requests.request import MultiItemPrompt


@dataclass(frozen=True)
class Batch:
    """The forwards of some prompts, to be run in order, and how many tokens of each prompt were cached."""

    forwards: tuple[Forward, ...]
    cached_tokens: tuple[int, ...]


def pack(
    prompts: Sequence[MultiItemPrompt], budget: int, cache: QueryCache, longrope: LongropeTables | None = None
) -> Batch:
    """Pack prompts into forwards. A prompt without items costs nothing: no row of it would be read.

    Args:
        budget: Tokens per forward, at most; at least a page, or with recurrent layers a chunk.
        longrope: Its tables beyond the original context; None: all prompts are rotated alike.

    Example:
        >>> prompt = MultiItemPrompt.of([1, 2, 3], [[4, 5], [6]])
        >>> (forward,) = pack([prompt], budget=64, cache=QueryCache(pages=8, reserve=4)).forwards
        >>> forward.positions
        array([0, 1, 2, 3, 4, 3], dtype=int32)
        >>> forward.cu_seqlens
        array([0, 3, 5, 6], dtype=int32)
        >>> [(group.first_row, group.last_row, group.context_rows) for group in forward.groups]
        [(0, 3, slice(0, 0, None)), (3, 6, slice(0, 3, None))]
    """
    unit = PAGE if cache.states is None else CHUNK
    if budget < unit:
        raise ValueError(f"a forward of {budget} tokens is smaller than {unit}, where a query may be cut")
    try:
        groups = grouped_by_query(prompts, cache.caching, longrope)
        cache.begin_batch(*_claims(groups, budget, cache))
        packed, cached = _place(groups, prompts, cache)
        ends = _cut(packed, budget, unit)
        _keep_across_forwards(packed, ends, cache)
    finally:
        cache.end_batch()
    if not packed:
        return Batch((), cached)
    rows = BatchRows.of(packed, longrope)
    forwards = []
    remaining = deque(packed)
    for begin, end in pairwise([0, *ends]):
        groups_of_forward: list[SegmentGroup] = []
        states = None if cache.states is None else StatesOfForward(begin, end)
        while remaining and remaining[0].begin + remaining[0].cached < end:
            groups_of_forward += remaining[0].groups(begin, end)
            if states is not None:
                states.add(remaining[0])
            if remaining[0].end > end:
                break
            remaining.popleft()
        plan = None if states is None else states.plan()
        forwards.append(rows.forward(begin, end, groups_of_forward, plan))
    return Batch(tuple(forwards), cached)


def _place(
    groups: Sequence[QueryGroup], prompts: Sequence[MultiItemPrompt], cache: QueryCache
) -> tuple[list[PackedPrompt], tuple[int, ...]]:
    """Line up all new tokens. Returns what is to be computed, and the cached tokens of each prompt."""
    packed: list[PackedPrompt] = []
    cached: dict[int, int] = {}
    end = 0
    for group in groups:
        slots, hit, states = _acquire(group, cache)
        packed.append(PackedPrompt(group.prompt, end, slots, hit, group.items, group.places, states))
        end = packed[-1].end
        for member in group.members:
            # Computed for the first. What was computed for any of its items was not cached for the prompt.
            own = hit if member == group.members[0] else prompts[member].query_length
            cached[member] = min(own, cached.get(member, own))
    return packed, tuple(cached.get(prompt, 0) for prompt in range(len(prompts)))


def _acquire(group: QueryGroup, cache: QueryCache) -> tuple[Int64, int, QueryStates]:
    """Look up a query: the slots of its first tokens, how many of these are cached, and its states."""
    key, states = group.prompt.query_key, cache.states
    if states is None or not cache.caching:
        return *cache.acquire_query(key, group.max_hit), NO_STATES
    shared = cache.leading_pages(key) * PAGE
    slots, hit = cache.acquire_query(key, cache.hit(key, group.max_hit))
    hit = states.find(key, hit)
    first = states.use(key, hit) if hit else ZERO_SLOT
    kept = {}
    for place in sorted({each // CHUNK * CHUNK for each in (shared, len(slots))}):
        if place > hit and (slot := states.keep(key, place)) is not None:
            kept[place] = slot
    return slots, hit, QueryStates(first, kept)


def _cut(packed: Sequence[PackedPrompt], budget: int, unit: int) -> list[int]:
    ends: list[int] = []
    begin, total = 0, packed[-1].end if packed else 0
    for p in packed:
        while p.end - begin > budget:
            end = begin + budget
            begin = end - p.offset_in_node(end) % unit
            ends.append(begin)
    return [*ends, total] if total else []


def _keep_across_forwards(packed: Sequence[PackedPrompt], ends: Sequence[int], cache: QueryCache) -> None:
    """Allocate slots for the prompts that span several forwards.

    The forward before a boundary writes what is allocated there: a page passes on once that forward has read it.
    """
    allocations: list[Allocation] = []
    boundaries = deque(pairwise([0, *ends[:-1]]))
    try:
        for p in packed:
            while boundaries and boundaries[0][1] < p.end:
                before, boundary = boundaries.popleft()
                if boundary > p.begin + p.cached:
                    for unread in [each for each in allocations if each.read_until <= before]:
                        cache.free(unread.pages)
                        allocations.remove(unread)
                    # One by one: if the next has no room, those before it are freed.
                    for allocation in p.keep_across(boundary, cache):
                        allocations.append(allocation)
    finally:
        for allocation in allocations:
            cache.free(allocation.pages)


def pool_reserve(longest: int, budget: int) -> int:
    """Count the pages that prompts spanning several forwards may need, of `longest` tokens with an item.

    At a boundary a prompt keeps its query and a part of an item. The forward that reads them ends with another
    such part, of the same prompt or of the next, which it has begun itself: at most a forward's tokens. Of an item
    whole pages are kept, so only the queries' last pages may be partly filled.
    """
    return -(-longest // PAGE) + -(-min(longest, budget) // PAGE) + 2


def _claims(
    groups: Sequence[QueryGroup], budget: int, cache: QueryCache
) -> tuple[int, list[tuple[QueryKey, int]]]:
    """Return a batch's needs of the pool: a reserve for several forwards, or the pages that its queries hit."""
    prompts = [group.prompt for group in groups]
    hits = [group.hit_pages(cache) for group in groups]
    if sum(len(p.tokens) - PAGE * hit for p, hit in zip(prompts, hits, strict=True)) <= budget:
        return 0, [(p.query_key, hit) for p, hit in zip(prompts, hits, strict=True) if hit]
    longest = max(p.query_length + int(p.item_lengths.max(initial=0)) for p in prompts)
    return pool_reserve(longest, budget), []
