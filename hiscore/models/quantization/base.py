"""The interface of a format, and what several formats share."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor

KV_CACHE_SCALES = frozenset({"k_scale", "v_scale"})
"""Scales of a quantised KV cache. Here the cache is in the model's dtype, which needs none."""


class Format(ABC):
    """Storage of weights by a method of quantisation. Names are the last components of tensors' names.

    What a checkpoint says of quantised activations is not applied: the truth of a quantised checkpoint is a
    float32 forward with its dequantised weights.
    """

    method: ClassVar[str]
    companions: ClassVar[Mapping[str, str]]
    """Parts stored beside or instead of a weight, and the name of that weight."""
    dropped: ClassVar[frozenset[str]] = frozenset()
    parts_have_rows: ClassVar[bool] = False
    """True if every part has the rows of the weight, so that a rank can read those that it needs."""
    excluded_keys: ClassVar[tuple[str, ...]] = ("modules_to_not_convert",)
    """Keys of the config with the modules left unquantised; the first that is there counts."""
    rows_of_a_block: int = 1
    """Rows that share their scales in fp8; the last of a weight may be fewer."""
    powers_of_two: bool = False
    """True if scales in fp8 are powers of two, those of activations included."""

    def __init__(self, quantised: Mapping[str, Any]) -> None:
        lists = (quantised[key] for key in self.excluded_keys if quantised.get(key))
        self.excluded: list[str] = next(lists, [])

    def split(self, stored: str) -> tuple[str, str]:
        module, _, part = stored.rpartition(".")
        return module, part

    def is_excluded(self, module: str) -> bool:
        return any(names_module(pattern, module) for pattern in self.excluded)

    def in_fp8(self, module: str, parts: Mapping[str, Tensor]) -> tuple[Tensor, Tensor, int] | None:
        """A module's weight if stored in fp8, float8_e4m3fn [out, in], with the results of `scales_of_rows`."""
        return None

    @abstractmethod
    def dequantise(self, module: str, parts: Mapping[str, Tensor]) -> Tensor:
        """The weight of a module from its stored parts, in any float dtype that holds its values.

        Raises:
            ValueError: The parts are not of the format, or do not fit together.
            KeyError: One is missing.
        """


def names_module(pattern: str, module: str) -> bool:
    """True if an entry of a list of modules names a module: whole, its end, or something that it is part of.

    Source: transformers.quantizers.quantizers_utils.should_convert_module, less its matches of half a component,
    by which layer 1 would stand for layer 10 too.
    """
    part = pattern.rstrip(".")
    try:
        return re.fullmatch(rf"(.*\.)?({part})(\..*)?", module) is not None
    except re.error:
        return part == module
