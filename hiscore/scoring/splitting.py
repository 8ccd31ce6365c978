"""Split a large prompt into several, so that other requests can run in between.

Each part holds the whole query and some of the items. Items do not see each other, so their scores do not change.
The query is computed again for each part unless it is cached, so a part is several times as long as the query.
"""

from dataclasses import replace
from itertools import pairwise

import numpy as np

from hiscore.scoring.request import MultiItemPrompt

# A prompt of up to this many parts stays whole: then no forward computes anything twice.
WHOLE_UP_TO = 8
# A part holds at least this many times the query: at most a seventh of the work is repeated.
MIN_QUERIES_PER_PART = 8


def split_prompt(prompt: MultiItemPrompt, budget: int) -> list[MultiItemPrompt]:
    """Split a prompt that is much larger than the budget.

    Args:
        prompt: Stays whole if it is not much larger than a part.
        budget: Tokens per part; more where the query is long.

    Returns:
        Parts in the order of the items. Only a part of a single item may exceed the bound.
    """
    bound = max(budget, MIN_QUERIES_PER_PART * prompt.query_length)
    if len(prompt.tokens) <= WHOLE_UP_TO * bound:
        return [prompt]
    room = bound - prompt.query_length
    starts = np.concatenate(([0], np.cumsum(prompt.item_lengths)))  # and where the last item ends
    firsts = [0]  # the first item of each part, and where the items end
    while firsts[-1] < len(prompt.item_lengths):
        fit = int(np.searchsorted(starts, starts[firsts[-1]] + room, side="right")) - 1
        firsts.append(max(fit, firsts[-1] + 1))
    query, items = np.split(prompt.tokens, [prompt.query_length])
    return [
        replace(
            prompt,
            tokens=np.concatenate((query, items[starts[first] : starts[last]])),
            item_lengths=prompt.item_lengths[first:last],
        )
        for first, last in pairwise(firsts)
    ]
