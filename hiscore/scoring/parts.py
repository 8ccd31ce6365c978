"""A large call as several smaller ones, so that others get their turn in between.

Every part holds the whole query and some of the items. Items do not see each other, so their scores are the same.
The query is computed again for each part unless it is cached, so a part holds several times as much as the query.
"""

from itertools import pairwise

import numpy as np

from hiscore.scoring.request import MultiItemPrompt

# A call of at most so many parts stays whole: its forwards then compute nothing twice.
WHOLE_UP_TO = 8
# A part's size, in queries, at least: at most a seventh of the work is done again.
QUERIES = 8


def split_call(call: MultiItemPrompt, budget: int) -> list[MultiItemPrompt]:
    """Parts of about `budget` tokens, in the order of the items; a call that is not much larger stays whole."""
    size = max(budget, QUERIES * call.query_length)
    if len(call.tokens) <= WHOLE_UP_TO * size:
        return [call]
    ends = np.cumsum(call.item_lengths)
    # An item belongs to the part in which it ends: no part is larger than this, but for one of a single item.
    part_of = (ends - 1).clip(0) // (size - call.query_length)
    firsts = np.flatnonzero(np.diff(part_of, prepend=-1))
    bounds = [*firsts.tolist(), len(ends)]
    query, items = call.tokens[: call.query_length], call.tokens[call.query_length :]
    starts = np.concatenate(([0], ends))
    return [
        MultiItemPrompt(
            np.concatenate((query, items[starts[first] : starts[last]])),
            call.query_length,
            call.item_lengths[first:last],
        )
        for first, last in pairwise(bounds)
    ]
