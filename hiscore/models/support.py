"""What a checkpoint can serve, and the facts that validation needs of it.

`servable` reads JSON files only, since the launcher asks before anything heavy is imported.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hiscore.models.deepseek import families as dsa
from hiscore.settings import Selector

MODELS = ("score", "tokenizer", "scorer", "decode")
# What is loaded where MODELS does not say.
DEFAULT_MODELS = MODELS
# transformers' model_type of the families that the scorer computes; decode knows more.
FAMILIES = ("llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text")
# Frequencies that change with the length of the sequence would change with what shares the batch.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
# Every family's default is one of these.
ACTIVATIONS = ("silu", "gelu_pytorch_tanh")
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model")


@dataclass(frozen=True)
class CheckpointFacts:
    """What validation must know of the model behind: sizes in tokens, and whether it is a classifier."""

    vocab_size: int
    context_length: int
    is_classifier: bool


@dataclass(frozen=True)
class Capabilities:
    """The models that a checkpoint can serve, and for every other the reason why not.

    selectors: those that `decode` has for it, the default first.
    """

    models: tuple[str, ...]
    left_out: dict[str, str]
    selectors: tuple[Selector, ...] = ()


def servable(checkpoint: Path) -> Capabilities:
    """Sort the models into what this checkpoint can serve and what not."""
    left_out: dict[str, str] = {}
    config = json.loads((checkpoint / "config.json").read_text())
    if not has_tokenizer(checkpoint):
        left_out["tokenizer"] = "the checkpoint has no tokenizer.json"
    if reason := unsupported(config):
        left_out["scorer"] = reason
    if left_out:
        left_out["score"] = f"it needs the {' and the '.join(left_out)}"
    if reason := undecodable(config):
        left_out["decode"] = reason
    selectors = _selectors(config.get("model_type"))
    return Capabilities(tuple(name for name in MODELS if name not in left_out), left_out, selectors)


def has_tokenizer(checkpoint: Path) -> bool:
    """Whether the checkpoint comes with a tokenizer; without one, `decode` takes and gives ids alone."""
    return any((checkpoint / name).is_file() for name in TOKENIZER_FILES)


def undecodable(config: dict[str, Any]) -> str | None:
    """Why ``decode`` cannot serve a checkpoint with this config.json, or None if it can."""
    if config.get("model_type") in dsa.FAMILIES:
        return dsa.unsupported(config)
    if reason := unsupported(config):
        return reason
    if not config["architectures"][0].endswith("ForCausalLM"):
        return f"architecture '{config['architectures'][0]}' has no head for tokens"
    return None


def _selectors(family: str | None) -> tuple[Selector, ...]:
    # Only the checkpoint's own indexer reads latents: the other selectors need keys of each head.
    return ("dsa", "dense") if family in dsa.FAMILIES else ("quest", "exact", "dense")


def unsupported(config: dict[str, Any]) -> str | None:
    """Why the scorer cannot compute a checkpoint with this config.json, or None if it can."""
    family = config.get("model_type")
    if family in dsa.FAMILIES:
        return f"model_type '{family}' attends to a selection of tokens: decode alone serves it"
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


def read_eos_ids(checkpoint: Path) -> frozenset[int]:
    """The ids that end a text: generation_config.json's, or where it names none config.json's."""
    for name in ("generation_config.json", "config.json"):
        path = checkpoint / name
        ids = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        if ids is not None:
            return frozenset(ids if isinstance(ids, list) else [ids])
    return frozenset()
