"""The oracle: every key stays on the device, and the tokens with the most attention are chosen."""

import torch
from torch import Tensor

from hiscore.attention.base import AttentionShape
from hiscore.attention.paged_torch import capped, working
from hiscore.decoding.cache import Cache, DecodeRows
from hiscore.decoding.selection import Selection, choose


class ExactSelector:
    """`Selector` by the mean over a group of its query heads' softmax over all tokens; pages are single tokens.

    The first token and the newest are always chosen.
    """

    def __init__(self, cache: Cache, shape: AttentionShape) -> None:
        self._cache, self._shape = cache, shape

    def write(self, layer: int, keys: Tensor, home_slots: Tensor) -> None:
        (new,) = torch.nonzero(home_slots >= 0, as_tuple=True)
        self._cache.index[self._cache.sparse[layer]][home_slots[new].long()] = keys[new]

    def select(self, layer: int, q: Tensor, rows: DecodeRows) -> Selection:
        cache, shape = self._cache, self._shape
        grouped = working(q).unflatten(1, (shape.kv_heads, -1))
        index = cache.index[cache.sparse[layer]]

        def score(row: int, pages: Tensor) -> Tensor:
            keys = working(index[pages]).permute(1, 2, 0)
            logits = capped(grouped[row] @ keys * shape.scale, shape.soft_cap)
            return logits.softmax(-1).mean(1)

        return choose(cache, rows, lambda page, newest: (page == 0) | (page == newest), score)
