"""Facts of a checkpoint that the KV cache depends on, and kinds of its layers that follow from them."""

from dataclasses import dataclass

from hiscore.decoding.interface.cache_config import STAGING_PAGE_SIZE, PromptPool
from hiscore.decoding.sparse.selectors import SELECTORS
from hiscore.parallel.shard import WHOLE, Shard
from hiscore.recurrence.gated_delta_net import RecurrentShape
from hiscore.settings import CacheSettings


@dataclass(frozen=True)
class ModelShape:
    """A checkpoint's sizes, named as in `CacheShape`.

    Attributes:
        windows: Sliding window of each layer; None: the layer attends to everything, or is recurrent.
        context_length: Tokens of the longest sequence, decided by `context_setting`.
        top_k: Tokens that the checkpoint's own indexer selects; None without one.
        recurrent: Layers that keep a state of size `recurrence` in place of keys and values.
    """

    kv_heads: int
    kv_parts: int
    head_dim: int
    windows: tuple[int | None, ...]
    context_length: int
    index_dim: int = 0
    top_k: int | None = None
    sharing_layers: frozenset[int] = frozenset()
    host_share: Shard = WHOLE
    context_setting: str = "MAX_CONTEXT"
    recurrent: frozenset[int] = frozenset()
    recurrence: RecurrentShape | None = None

    @property
    def windowed(self) -> frozenset[int]:
        """Layers that keep a window and no more, on the device alone: without it a sequence starts over."""
        return frozenset(layer for layer, window in enumerate(self.windows) if window is not None)

    @property
    def longest_window(self) -> int:
        """Tokens that one of these layers sees at most; 0 without such layers."""
        return max((self.windows[layer] or 0 for layer in self.windowed), default=0)

    def state_bytes(self, number_bytes: int) -> int:
        """Count the bytes of a sequence's state in all recurrent layers."""
        if self.recurrence is None:
            return 0
        return self.recurrence.bytes_of(len(self.recurrent), number_bytes)


def dense_layers_of(settings: CacheSettings, model: ModelShape) -> frozenset[int]:
    """Layers with a window, all layers under "dense", and the first of the other selectors."""
    kind = SELECTORS[settings.selector]
    first = kind.dense_layers if kind.make else len(model.windows)
    return frozenset(
        layer
        for layer, window in enumerate(model.windows)
        if layer not in model.recurrent and (layer < first or window is not None)
    )


def prompt_pool(settings: CacheSettings, model: ModelShape) -> PromptPool:
    """Choose the pool of prompts: where they stay, if one number places a token in all layers without a window."""
    if model.index_dim or model.kv_parts == 1 or SELECTORS[settings.selector].page_size % STAGING_PAGE_SIZE:
        return "staging"
    dense_layers = dense_layers_of(settings, model)
    if len(dense_layers) == len(model.windows) - len(model.recurrent):
        return "dense"
    kept_apart = model.windowed | model.recurrent
    others = [layer in dense_layers for layer in range(len(model.windows)) if layer not in kept_apart]
    are_first = others == sorted(others, reverse=True)
    return "buffers" if settings.selector == "auto" and are_first else "staging"


def caches_prefixes(settings: CacheSettings, model: ModelShape) -> tuple[bool, str]:
    """Return whether prefixes are cached, and why, for the log; layers with a window have nothing left of them."""
    said = {True: "on", False: "off", "auto": "auto"}[settings.prefix_cache]
    setting = f"PREFIX_CACHE is {said}"
    if model.windowed and settings.prefix_cache is not False:
        return (
            False,
            f"{setting}, but {len(model.windowed)} of {len(model.windows)} layers keep a window only",
        )
    return settings.prefix_cache is not False, setting
