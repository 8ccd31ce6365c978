"""What a checkpoint can serve, and the facts that validation needs of it.

`servable` reads JSON files only, since the launcher asks before anything heavy is imported.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hiscore.validation import CheckpointFacts

# transformers' model_type of the families that the decoder computes.
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text")
# Frequencies that change with the length of the sequence would change with what shares the batch.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
# Every family's default is one of these.
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True)
class Capabilities:
    """The models that a checkpoint can serve, and for every other the reason why not."""

    models: tuple[str, ...]
    left_out: dict[str, str]


def servable(checkpoint: Path) -> Capabilities:
    """Sort ``tokenizer``, ``scorer`` and ``score`` into what this checkpoint can serve and what not."""
    left_out: dict[str, str] = {}
    if not any((checkpoint / name).is_file() for name in TOKENIZER_FILES):
        left_out["tokenizer"] = "the checkpoint has no tokenizer.json"
    if reason := unsupported(json.loads((checkpoint / "config.json").read_text())):
        left_out["scorer"] = reason
    if left_out:
        left_out["score"] = f"it needs the {' and the '.join(left_out)}"
    every = ("tokenizer", "scorer", "score")
    return Capabilities(tuple(name for name in every if name not in left_out), left_out)


def unsupported(config: dict[str, Any]) -> str | None:
    """Why the decoder cannot compute a checkpoint with this config.json, or None if it can."""
    family = config.get("model_type")
    if family not in FAMILIES:
        return f"model_type '{family}' is none of {', '.join(FAMILIES)}"
    architecture = (config.get("architectures") or ["none"])[0]
    if not architecture.endswith(("ForCausalLM", "ForSequenceClassification")):
        return f"architecture '{architecture}' is neither a causal LM nor a sequence classifier"
    if config.get("quantization_config"):
        return "its weights are quantised; float32, float16 and bfloat16 ones are served"
    activation = config.get("hidden_activation" if family.startswith("gemma") else "hidden_act") or "default"
    if activation not in ("default", *ACTIVATIONS):
        return f"activation '{activation}' is none of {', '.join(ACTIVATIONS)}"
    if config.get("use_bidirectional_attention"):
        return "it attends in both directions"
    if family == "gemma3_text" and config.get("attn_logit_softcapping"):
        return "it caps attention logits, which transformers' Gemma 3 does not compute"
    for rope_type in sorted(_rope_types(config) - set(ROPE_TYPES)):
        return f"rope type '{rope_type}' is none of {', '.join(ROPE_TYPES)}"
    return None


def _rope_types(config: dict[str, Any]) -> set[str]:
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    variants = [value for value in rope.values() if isinstance(value, dict)] or [rope]
    return {str(variant.get("rope_type", variant.get("type", "default"))) for variant in variants}


def read_facts(checkpoint: Path) -> CheckpointFacts:
    """Sizes and kind of a checkpoint, defaults of its family included."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False, local_files_only=True)
    return CheckpointFacts(
        vocab_size=config.vocab_size,
        context_length=config.max_position_embeddings,
        is_classifier=config.architectures[0].endswith("ForSequenceClassification"),
    )
