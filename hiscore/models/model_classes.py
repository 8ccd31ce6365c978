"""The model classes that are served, by the model_type of their configs.

A class of another name may compute anything under the same model_type: attention in both directions, a mean of all
tokens, a head of several layers.
"""

from hiscore.models.family import (
    CAUSAL_LM,
    CLASSIFIER,
    GUARD,
    PROCESS_REWARD_MODEL,
    RANKING,
    REWARD_MODEL,
    TEXT_TOWER,
    TOKEN_CLASSIFIER,
)
from hiscore.models.rules import Config


def _classes(*kinds: str, **stems: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(f"{stem}{kind}" for kind in kinds) for name, stem in stems.items()}


MODEL_CLASSES: dict[str, tuple[str, ...]] = {
    **_classes(
        CAUSAL_LM,
        CLASSIFIER,
        TOKEN_CLASSIFIER,
        **{"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral", "gemma": "Gemma"},
        **{"gemma2": "Gemma2", "phi3": "Phi3", "smollm3": "SmolLM3", "seed_oss": "SeedOss", "glm": "Glm"},
        **{"glm4": "Glm4", "exaone4": "Exaone4", "mixtral": "Mixtral", "ministral3": "Ministral3"},
        **{"qwen3_moe": "Qwen3Moe", "qwen3_next": "Qwen3Next", "gpt_oss": "GptOss"},
    ),
    **_classes(CAUSAL_LM, CLASSIFIER, olmo2="Olmo2", olmo3="Olmo3"),
    **_classes(CAUSAL_LM, granite="Granite", cohere="Cohere", cohere2="Cohere2", lfm2="Lfm2"),
    **_classes(CAUSAL_LM, deepseek_v3="DeepseekV3", deepseek_v32="DeepseekV32", glm_moe_dsa="GlmMoeDsa"),
    **_classes(
        TEXT_TOWER, mistral3="Mistral3", qwen2_vl="Qwen2VL", qwen2_5_vl="Qwen2_5_VL", qwen3_vl="Qwen3VL"
    ),
    **_classes(
        CLASSIFIER,
        TOKEN_CLASSIFIER,
        **{"bert": "Bert", "roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"},
        **{"electra": "Electra", "modernbert": "ModernBert", "deberta-v2": "DebertaV2"},
        **{"distilbert": "DistilBert", "albert": "Albert", "mpnet": "MPNet", "eurobert": "EuroBert"},
    ),
    **_classes(CLASSIFIER, new="New", llama_bidirec="LlamaBidirectional"),
    "gemma4": (f"Gemma4{TEXT_TOWER}",),
    "gemma4_text": (f"Gemma4{CAUSAL_LM}",),
    "qwen3_5": (f"Qwen3_5{TEXT_TOWER}", f"Qwen3_5{CLASSIFIER}", f"Qwen3_5{TOKEN_CLASSIFIER}"),
    "qwen3_5_moe": (f"Qwen3_5Moe{TEXT_TOWER}",),
    "qwen3_5_moe_text": (f"Qwen3_5Moe{CAUSAL_LM}",),
    "qwen3_5_text": (f"Qwen3_5{CAUSAL_LM}", f"Qwen3_5Text{CLASSIFIER}"),
    "gemma3": (f"Gemma3{TEXT_TOWER}", f"Gemma3{CLASSIFIER}"),
    "gemma3_text": (f"Gemma3{CAUSAL_LM}", f"Gemma3Text{CLASSIFIER}"),
    # To transformers a mistral with layer_types is a ministral.
    "ministral": tuple(
        f"{stem}{kind}"
        for stem in ("Ministral", "Mistral")
        for kind in (CAUSAL_LM, CLASSIFIER, TOKEN_CLASSIFIER)
    ),
}
# Qwen's own code (modeling_qwen2_rm.py), and the same head on Qwen 3, as SGLang has it.
MODEL_CLASSES["qwen2"] += (f"Qwen2{REWARD_MODEL}", f"Qwen2{PROCESS_REWARD_MODEL}")
MODEL_CLASSES["qwen3"] += (f"Qwen3{REWARD_MODEL}", f"Qwen3{GUARD}", f"Jina{RANKING}")


def unknown_class(config: Config) -> str | None:
    model_type, name = config.get("model_type"), (config.get("architectures") or ["none"])[0]
    known = MODEL_CLASSES.get(str(model_type), ())
    if refused := config.get("refused_modules"):
        return str(refused)
    if name == f"Jina{RANKING}" and "sliding_attention" in (config.get("layer_types") or ()):
        return "layers with a window are those of jina-reranker-v3.5, whose prompt and scores are others than v3's"
    if name in known:
        return None
    served = ", ".join(known) or "the classes that are served"
    return f"architecture '{name}' of model_type '{model_type}' is none of {served}{own_code(config)}"


def own_code(config: Config) -> str:
    """A remark about the code that a config.json names; empty if it names none."""
    if not (auto_map := config.get("auto_map")):
        return ""
    named = auto_map.values() if isinstance(auto_map, dict) else [auto_map]
    return f" (its auto_map names code of its own, '{next(iter(named))}', which is never run)"
