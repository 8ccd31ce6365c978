"""Every setting: declared once, with type, default, bounds and description.

From the declarations come the variables of ``make serve`` (`ServeSettings`), what each model reads
(`read_settings`), and docs/settings.md (``make docs``). To add a setting, add a field to a group in `groups`
(models read it, too) or `serve` (the launcher alone reads it).
"""

from hiscore.settings.api import ApiBounds, ApiProcessSettings, ApiSettings
from hiscore.settings.groups import (
    DEFAULT_MODEL,
    CacheSettings,
    Device,
    Dtype,
    Limits,
    PrefixCaching,
    Selector,
)
from hiscore.settings.models import (
    MODEL_SETTINGS,
    DecodeSettings,
    ModelSettings,
    ScorerSettings,
    TokenizerSettings,
    read_settings,
)
from hiscore.settings.serve import ServeSettings

CANARY_ID = "hiscore-canary"
"""Request id of the launcher's canaries: the scorer does not count them as work."""

__all__ = [
    "CANARY_ID",
    "DEFAULT_MODEL",
    "MODEL_SETTINGS",
    "ApiBounds",
    "ApiProcessSettings",
    "ApiSettings",
    "CacheSettings",
    "DecodeSettings",
    "Device",
    "Dtype",
    "Limits",
    "ModelSettings",
    "PrefixCaching",
    "ScorerSettings",
    "Selector",
    "ServeSettings",
    "TokenizerSettings",
    "read_settings",
]
