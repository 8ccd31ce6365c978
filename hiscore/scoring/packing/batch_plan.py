"""The costs of a batch of prompts, and the part of a large prompt that one batch takes.

A prompt costs the tokens that have to be computed: not those of its query that are in the prefix cache, or that a
prompt before it in the batch brings. A part of a prompt holds the whole query and some of the items. Items do not
see each other, so their scores do not change.

Between the slices of another batch nothing may turn out to cost more. So there only the very same query is shared:
for others the pool may have no room (`QueryCache.held`).
"""

import numpy as np

from hiscore.attention.metadata import MAX_CONTEXT_SLOTS
from hiscore.batching.batched_model import BatchPlan, Part
from hiscore.recurrence.metadata import MOST_QUERIES
from hiscore.scoring.packing.query_cache import QueryCache
from hiscore.scoring.requests.label_trie import LABEL_ROWS
from hiscore.scoring.requests.query_key import PAGE, QueryKey
from hiscore.scoring.requests.request import MultiItemPrompt, ScoreRequest

# A part holds at least this many times the query tokens that every part computes again: at most a seventh of the
# work is repeated.
MIN_QUERIES_PER_PART = 8
# Where the cache cannot hold the query, a prompt of up to this many parts stays whole: nothing is computed twice.
WHOLE_UP_TO = 8


class ScoringPlan(BatchPlan[ScoreRequest]):
    """`BatchPlan` of `ScoreRequest`, with costs in tokens; the progress of a job is in items."""

    def __init__(self, cache: QueryCache, budget: int) -> None:
        """Start an empty batch of forwards of `budget` tokens; `cache` is not changed."""
        self._cache, self._budget = cache, budget
        self._queries: set[bytes] = set()
        self._pages: set[bytes] = set()
        self._priced: tuple[ScoreRequest | None, tuple[int, int]] = None, (0, 0)

    def price(self, job: ScoreRequest, done: int) -> int:
        query, read = self._query(job)
        return self._cost(job, done, len(job.prompt.item_lengths), query, read)

    def take(self, job: ScoreRequest, done: int, room: int, at_least_one: bool) -> Part[ScoreRequest] | None:
        prompt, (query, read) = job.prompt, self._query(job)
        items = last = len(prompt.item_lengths)
        cost = self._cost(job, done, last, query, read)
        if cost > room and items:
            last = self._end_of_part(job, done, query, room, cost)
            cost = self._cost(job, done, last, query, read)
        if cost > room and not at_least_one:
            return None
        self._priced = None, (0, 0)
        if self._cache.caching and items:
            for key in prompt.query_keys:
                self._queries.add(key.whole)
                if not self._cache.holds:
                    self._pages.update(key.pages)
        if last == items:
            return Part(job if not done else job.part(prompt.part(done, items), done), cost)
        left = self._cost(job, last, items, 0, 0)
        return Part(job.part(prompt.part(done, last), done), cost, last, left)

    def _query(self, job: ScoreRequest) -> tuple[int, int]:
        """Count the tokens of the query to compute, and those to read from the cache."""
        # Most jobs are taken right after they were priced.
        if self._priced[0] is not job:
            self._priced = job, self._look_up(job)
        return self._priced[1]

    def _look_up(self, job: ScoreRequest) -> tuple[int, int]:
        found = [self._look_up_one(key, job.prompt) for key in job.prompt.query_keys]
        return sum(query for query, _ in found), sum(read for _, read in found)

    def _look_up_one(self, key: QueryKey, prompt: MultiItemPrompt) -> tuple[int, int]:
        if not self._cache.caching:
            return prompt.query_length, 0
        if key.whole in self._queries:
            return 0, 0
        # An empty item is read at the query's last token, which must then be computed. Another job of the same
        # query may have one.
        last = prompt.empty_items > 0 or self._cache.holds
        cached = self._cache.hit(key, max(0, prompt.query_length - last), self._pages)
        return prompt.query_length - cached, cached

    def _cost(self, job: ScoreRequest, first: int, last: int, query: int, read: int) -> int:
        prompt = job.prompt
        if first == last:
            return 0
        whole = last - first == len(prompt.item_lengths)
        tokens = query + (
            prompt.computed_items if whole else int(prompt.cost_ends[last] - prompt.cost_ends[first])
        )
        if prompt.apart is not None and self._cache.holds:
            tokens += prompt.query_length * int(prompt.apart[first:last].sum())
        if prompt.empty_items:
            # They have no tokens, but their rows are still read.
            tokens += prompt.empty_items if whole else int((prompt.item_lengths[first:last] == 0).sum())
        # The contexts of a forward have to fit as well, and the states of its queries.
        of_state = 0 if self._cache.states is None else -(-self._budget // MOST_QUERIES)
        return max(tokens, -(-read * self._budget // MAX_CONTEXT_SLOTS), of_state)

    def _end_of_part(self, job: ScoreRequest, first: int, query: int, room: int, cost: int) -> int:
        """One past the last item of a part of about `room` tokens, and of one item at least."""
        prompt = job.prompt
        if not prompt.query_length or self._cache.can_hold(prompt.query_key):
            again = query if first else prompt.query_length % PAGE
        else:
            again = prompt.query_length
            bound = max(self._budget, MIN_QUERIES_PER_PART * again)
            room = prompt.computed if cost <= WHOLE_UP_TO * bound else max(room, self._budget)
            if prompt.tries is not None and prompt.rows_read > max(self._budget, LABEL_ROWS):
                # Nearly every token of an item is read, and all that a batch reads is held until its end.
                room, again = self._budget + query, 0
        ends = prompt.cost_ends
        fitting = ends[first] + max(room, MIN_QUERIES_PER_PART * again) - query
        last = int(np.searchsorted(ends, fitting, side="right")) - 1
        return min(max(first + 1, last), len(ends) - 1)
