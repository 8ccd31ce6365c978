"""Choice of layers that keep everything or a window on the device, and of the memory that prompts go to."""

from collections.abc import Collection

from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, PromptPool
from hiscore.decoding.memory.model_shape import ModelShape
from hiscore.decoding.sparse.selectors import SELECTORS
from hiscore.settings import CacheSettings


def prompt_pool(
    settings: CacheSettings,
    model: ModelShape,
    dense_layers: frozenset[int],
    windowed: frozenset[int],
    page_size: int,
) -> PromptPool:
    """Choose the pool of prompts: where they stay, if one number places a token in all layers without a window."""
    if model.index_dim or model.kv_parts == 1 or page_size % STAGING_PAGE_SIZE:
        return "staging"
    if len(dense_layers) == len(model.windows):
        return "dense"
    others = [layer in dense_layers for layer in range(len(model.windows)) if layer not in windowed]
    are_first = others == sorted(others, reverse=True)
    return "buffers" if settings.selector == "auto" and are_first else "staging"


def dense_layers_of(settings: CacheSettings, model: ModelShape) -> frozenset[int]:
    """Layers with a window, all layers under "dense", and the first of the other selectors."""
    kind = SELECTORS[settings.selector]
    first = kind.dense_layers if kind.make else len(model.windows)
    return frozenset(
        layer for layer, window in enumerate(model.windows) if layer < first or window is not None
    )


def windowed_layers(model: ModelShape) -> frozenset[int]:
    """Layers with a window, which keep no more, and on the device alone: without them a sequence starts over."""
    return frozenset(layer for layer, window in enumerate(model.windows) if window is not None)


def caches_prefixes(settings: CacheSettings, model: ModelShape) -> tuple[bool, str]:
    """Return whether prefixes are cached, and why, for the log; layers with a window have nothing left of them."""
    said = {True: "on", False: "off", "auto": "auto"}[settings.prefix_cache]
    setting = f"PREFIX_CACHE is {said}"
    windowed = len(windowed_layers(model))
    if windowed and settings.prefix_cache is not False:
        return False, f"{setting}, but {windowed} of {len(model.windows)} layers keep a window only"
    return settings.prefix_cache is not False, setting


def longest_window(model: ModelShape, windowed: Collection[int]) -> int:
    """Tokens that one of these layers sees at most; 0 without layers."""
    return max((model.windows[layer] or 0 for layer in windowed), default=0)
