"""Transformers' AutoConfig and AutoTokenizer, imported without what only models need, and configs that it lacks.

AutoTokenizer is defined beside the classes that find models, in files that import the mixin of models that
generate: with it come torch._dynamo and torch.distributed.tensor, a second of processor time and 90 MB in every
process of a model. The mixin serves only models whose code comes with their checkpoint, and no such code is ever
run. The class of a config imports those files, too.
"""

from importlib import import_module
from typing import Any

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

from transformers import AutoConfig, AutoTokenizer, LlamaConfig  # noqa: E402
from transformers.configuration_utils import PreTrainedConfig  # noqa: E402


class NewConfig(PreTrainedConfig):  # type: ignore[misc]
    """Config of `model_type: new`, Alibaba's code for gte, which transformers does not have, with its defaults.

    Source: configuration.py and modeling.py of Alibaba-NLP/new-impl.
    """

    model_type = "new"
    default_theta = 10_000.0

    vocab_size: int = 30_528
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3_072
    hidden_act: str = "gelu"
    max_position_embeddings: int = 2_048
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = None
    rope_parameters: dict[str, Any] | None = None

    def __post_init__(self, **others: Any) -> None:
        """Express its one scaling of rotary embeddings by transformers' linear one, or raise ValueError."""
        if (scaling := others.pop("rope_scaling", None)) is not None:
            factor = scaling.get("factor") or 0
            kind = scaling.get("type") or scaling.get("rope_type")
            if kind != "ntk" or scaling.get("mixed_b") is not None or factor < 1:
                raise ValueError(f"rope_scaling {scaling} is not computed")
            scaled = others.pop("rope_theta", self.default_theta) * factor
            by_width = factor ** (2 * self.num_attention_heads / self.hidden_size)
            self.rope_parameters = {"rope_type": "linear", "rope_theta": scaled, "factor": by_width}
        super().__post_init__(**others)


class BidirectionalLlamaConfig(LlamaConfig):  # type: ignore[misc]
    """Config of `model_type: llama_bidirec`, NVIDIA's code for rerankers, with its defaults.

    Source: llama_bidirectional_model.py of nvidia/llama-nemotron-rerank-1b-v2, as in NVIDIA-NeMo/Automodel.
    """

    model_type = "llama_bidirec"

    pooling: str = "avg"
    temperature: float = 1.0


for _config in (NewConfig, BidirectionalLlamaConfig):
    AutoConfig.register(_config.model_type, _config, exist_ok=True)

__all__ = ["AutoConfig", "AutoTokenizer"]
