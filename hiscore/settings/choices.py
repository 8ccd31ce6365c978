"""Settings that take one of a few words."""

from typing import Literal

from hiscore.logs import LogFormat

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "fp8"]
# How `decode` selects tokens to attend to.
Selector = Literal["auto", "dense", "quest", "dsa"]
# Whether `decode` finds what sequences have left; "auto" is for it to say.
PrefixCaching = Literal["auto"] | bool
# Where `decode` takes defaults of request parameters from.
GenerationConfig = Literal["off", "checkpoint"]

__all__ = [
    "Device",
    "Dtype",
    "GenerationConfig",
    "LogFormat",
    "PrefixCaching",
    "Selector",
]
