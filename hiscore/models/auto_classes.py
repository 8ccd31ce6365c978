"""Transformers' AutoConfig and AutoTokenizer, imported without what only models need.

AutoTokenizer is defined beside the classes that find models, in files that import the mixin of models that
generate: with it come torch._dynamo and torch.distributed.tensor, a second of processor time and 90 MB in every
process of a model. The mixin serves only models whose code comes with their checkpoint, and no such code is ever
run. The class of a config imports those files, too.
"""

from importlib import import_module

from transformers import utils

# `auto_factory` imports these, too. They look for torch and are to find it.
for _name in ("configuration_utils", "dynamic_module_utils", "models.auto.configuration_auto"):
    import_module(f"transformers.{_name}")
_is_torch_available = utils.is_torch_available
utils.is_torch_available = lambda: False
try:
    import_module("transformers.models.auto.auto_factory")
finally:
    utils.is_torch_available = _is_torch_available

from transformers import AutoConfig, AutoTokenizer  # noqa: E402

from hiscore.models.new_config import NewConfig  # noqa: E402

AutoConfig.register(NewConfig.model_type, NewConfig, exist_ok=True)

__all__ = ["AutoConfig", "AutoTokenizer"]
