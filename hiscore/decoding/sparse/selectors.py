"""The values of the SELECTOR setting and what implements each. A new selector is added here.

The kernels (`triton_cache_ops`) follow the index kind and need nothing new for a selector that shares one.
"""

from collections.abc import Callable
from dataclasses import dataclass

from hiscore.attention.base import AttentionShape
from hiscore.decoding.kv_cache.cache import KVCache
from hiscore.decoding.kv_cache.shape import IndexKind
from hiscore.decoding.sparse.dsa import DsaSelector
from hiscore.decoding.sparse.exact import ExactSelector
from hiscore.decoding.sparse.quest import QuestSelector
from hiscore.decoding.sparse.selection import Selector


@dataclass(frozen=True)
class SelectorKind:
    """What a selector needs of the cache, and its PyTorch implementation.

    Attributes:
        index_kind: Index of keys on the device, from which `CacheShape.tensors` takes its shape.
        page_size: Tokens that are selected, moved and evicted together.
        make: The PyTorch implementation over a cache; None where every layer is dense.
    """

    index_kind: IndexKind
    page_size: int
    make: Callable[[KVCache, AttentionShape], Selector | DsaSelector] | None


# Larger pages mean a smaller index and longer copies, smaller pages a closer fit to what is looked for.
PAGE_SIZE = 32

SELECTORS: dict[str, SelectorKind] = {
    "dense": SelectorKind("none", PAGE_SIZE, None),
    "exact": SelectorKind("keys", 1, ExactSelector),
    "quest": SelectorKind("bounds", PAGE_SIZE, QuestSelector),
    "dsa": SelectorKind("dsa", 1, lambda cache, shape: DsaSelector(cache)),
    "auto": SelectorKind("bounds", PAGE_SIZE, QuestSelector),
}


def make_selector(cache: KVCache, shape: AttentionShape) -> Selector | DsaSelector | None:
    """The PyTorch selector for a cache's index; None without an index."""
    kind = next(kind for kind in SELECTORS.values() if kind.index_kind == cache.shape.index_kind)
    return kind.make(cache, shape) if kind.make else None
