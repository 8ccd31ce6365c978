"""Quest: a page counts as much as the best key that its bounds allow.

For each channel the index keeps the least and the greatest value of a page's keys. A query's product with any key
of the page is at most the sum over channels of the larger of its products with the two.
"""

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.paged_torch import capped, working
from hiscore.decoding.cache import Cache, DecodeRows
from hiscore.decoding.selection import Selection, choose


class QuestSelector:
    """`Selector` by the mean over a group of its query heads' softmax over the bounds of all pages.

    The first page and the ring's are always chosen: the newest one's bounds are never those of a full page.
    """

    def __init__(self, cache: Cache, shape: AttentionShape) -> None:
        self._cache, self._shape = cache, shape

    def write(self, layer: int, keys: Tensor, home_slots: Tensor) -> None:
        (new,) = torch.nonzero(home_slots >= 0, as_tuple=True)
        keys, slots = keys[new], home_slots[new].long()
        pages, offsets = slots // self._cache.shape.page, slots % self._cache.shape.page
        bounds = self._cache.index[self._cache.sparse[layer]]
        least, greatest = bounds[:, :, 0], bounds[:, :, 1]
        least[pages[offsets == 0]] = float("inf")
        greatest[pages[offsets == 0]] = float("-inf")
        of_keys = pages[:, None, None].expand_as(keys)
        least.scatter_reduce_(0, of_keys, keys, "amin")
        greatest.scatter_reduce_(0, of_keys, keys, "amax")

    def select(self, layer: int, q: Tensor, rows: DecodeRows) -> Selection:
        cache, shape = self._cache, self._shape
        grouped = working(q).unflatten(1, (shape.kv_heads, -1))
        bounds = cache.index[cache.sparse[layer]]

        def score(row: int, pages: Tensor) -> Tensor:
            least, greatest = working(bounds[pages]).permute(2, 1, 3, 0)
            above, below = grouped[row].clamp(min=0), grouped[row].clamp(max=0)
            logits = capped((above @ greatest + below @ least) * shape.scale, shape.soft_cap)
            return logits.softmax(-1).mean(1)

        ring = cache.shape.ring_pages
        return choose(cache, rows, lambda page, newest: (page == 0) | (page > newest - ring), score)
