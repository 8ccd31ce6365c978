"""Models of texts and images, of which the tower that reads texts is served: its config, and its tensors' names.

Nothing here imports torch: the launcher reads configs before anything heavy is loaded.
"""

import re
from collections.abc import Mapping

from hiscore.models.rules import Config

OF_IMAGES = re.compile(
    r"(model\.)?(visual|vision_tower|multi_modal_projector|audio_tower|embed_(vision|audio))\."
)
"""Names of tensors that read images and sounds, which are not loaded."""
LOOKAHEAD = "mtp."
"""Beginning of the names of Qwen's layers that predict further tokens, which are not loaded."""
TEXT_TOWERS: dict[str, tuple[str, ...]] = {
    "gemma3": ("gemma3_text",),
    "gemma4": ("gemma4_text",),
    "mistral3": ("mistral", "ministral3"),
    "qwen2_vl": ("qwen2_vl_text",),
    "qwen2_5_vl": ("qwen2_5_vl_text",),
    "qwen3_vl": ("qwen3_vl_text",),
    "qwen3_5": ("qwen3_5_text",),
    "qwen3_5_moe": ("qwen3_5_moe_text",),
}
"""Models of texts and images: the families that their text tower may be, the default first."""
TOWERS = {tower for towers in TEXT_TOWERS.values() for tower in towers}
"""Families whose tensors may have the names that they have beside images, also where a tower was saved alone."""


def text_config(config: Config) -> Config:
    """Part of a config.json about the model of texts: all of it, unless it is of texts and images."""
    towers = TEXT_TOWERS.get(str(config.get("model_type")))
    if towers is None:
        return config
    # Qwen's older configs have the keys of the text tower beside those of the whole.
    outer = {key: value for key, value in config.items() if key != "model_type"}
    inner = outer.pop("text_config", None)
    if not isinstance(inner, Mapping):
        return {**outer, "model_type": towers[0]}
    kept = {key: outer[key] for key in ("architectures", "quantization_config") if key in outer}
    return {"model_type": towers[0], **inner, **kept}


def text_tensor(name: str) -> str | None:
    """Name that a tensor of any version has in a model of texts; None: it belongs to images alone."""
    if OF_IMAGES.match(name):
        return None
    return _OF_TEXTS.sub("", name) if _HEAD.match(name) else _OF_TEXTS.sub("model.", name)


OTHER_NAMES = {
    "lfm2": {
        **{"operator_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"},
        **{"embedding_norm": "norm", "q_layernorm": "q_norm", "k_layernorm": "k_norm"},
        **{"self_attn.out_proj": "self_attn.o_proj", "feed_forward.w1": "mlp.gate_proj"},
        **{"feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj"},
    }
}
"""Parts of tensors' names in families that call them otherwise."""


def usual_name(name: str, model_type: str | None) -> str:
    """Name that a tensor of a family has in most others."""
    for own, usual in OTHER_NAMES.get(str(model_type), {}).items():
        name = name.replace(own, usual)
    return name


_OF_TEXTS = re.compile(r"^(model\.)?language_model\.(model\.)?")
_HEAD = re.compile(r"language_model\.lm_head\.")
