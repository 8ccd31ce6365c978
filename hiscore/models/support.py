"""Models that a checkpoint can serve, and the facts that validation needs, from its JSON files alone."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hiscore.models.adapter_files import AdapterFacts
from hiscore.models.division import undividable
from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.families import DECODER_FAMILIES, family_of
from hiscore.models.family import (
    PROCESS_REWARD_MODEL,
    DsaFamily,
    is_classifier,
    own_label_count,
    scores_tokens,
)
from hiscore.models.headers import unreadable
from hiscore.models.model_classes import unknown_class
from hiscore.models.rules import CAUSAL_RULE, COMMON_RULES, UNIDIRECTIONAL_RULE, UNIFORM_RULE, Config
from hiscore.models.stored_config import stored_config
from hiscore.models.text_towers import TEXT_TOWERS, text_config
from hiscore.settings import Selector

MODELS = ("score", "classify", "tokenizer", "scorer", "decode")
ENSEMBLES = ("score", "classify")
"""Models without a process of their own: `tokenizer`, then `scorer`."""
TOKENIZER_FILE = "tokenizer.json"
UNCONVERTED_TOKENIZERS = (
    "tokenizer.model", "sentencepiece.bpe.model", "spm.model", "spiece.model", "tiktoken.model", "tekken.json",
    "vocab.json", "vocab.txt",
)  # fmt: skip
"""Files from which transformers can make a TOKENIZER_FILE, with libraries that serving does without."""

STEP_TAG = "<extra_0>"
"""The token behind a step in prompts of Qwen2.5-Math-PRM."""
DEFAULT_MAX_CONTEXT = 32_768
"""Longest sequence if MAX_CONTEXT is not set: many checkpoints announce contexts that no pool could hold."""


@dataclass(frozen=True)
class CheckpointFacts:
    """Facts that validation needs of a checkpoint: sizes in tokens, and its kind."""

    vocab_size: int
    context_length: int
    """Tokens of the longest sequence, as MAX_CONTEXT limits it."""
    is_classifier: bool
    is_encoder: bool = False
    """True if every item is read with the query, both ways, and nothing is shared between items."""
    joins_pairs: bool = False
    """True if the tokenizer joins query and item by its template for pairs."""
    token_types: int = 0
    """Types of tokens that an encoder tells apart; 0 or 1: none."""
    scores_tokens: bool = False
    """True if its head is read at tokens, and an item as such has no score."""
    step_id: int | None = None
    """The token at which such a model is read; None: at every token."""
    is_guard: bool = False
    """True if its labels are of several groups."""
    labels: int = 0
    """Labels of a classifier."""
    adapters: Mapping[str, AdapterFacts] = field(default_factory=dict)
    """Adapters that calls may name."""


@dataclass(frozen=True)
class Capabilities:
    models: tuple[str, ...]
    left_out: dict[str, str]
    """Reason for each model that it cannot serve."""
    selectors: tuple[Selector, ...] = ()


def context_limit(of_checkpoint: int, max_context: int | None) -> int:
    """Tokens of the longest sequence that is served; raises ValueError if the setting exceeds the checkpoint's."""
    if max_context is None:
        return min(of_checkpoint, DEFAULT_MAX_CONTEXT)
    if max_context > of_checkpoint:
        raise ValueError(
            f"MAX_CONTEXT is {max_context}: the checkpoint's context holds {of_checkpoint} tokens"
        )
    return max_context


def most_context(config: Config, max_context: int | None) -> int:
    """Tokens beyond which the models refuse a sequence, as far as config.json alone says; it may be fewer.

    Only transformers' classes know what a config.json, also one of texts and images, leaves out.
    """
    if max_context is not None:
        return max_context
    return min(longest_context(config) or DEFAULT_MAX_CONTEXT, DEFAULT_MAX_CONTEXT)


def longest_context(config: Config) -> int | None:
    """The checkpoint's own context, if config.json alone says it."""
    texts = text_config(config)
    longest = texts.get("max_position_embeddings")
    rope = texts.get("rope_parameters") or texts.get("rope_scaling") or {}
    # Of YaRN see `layers.rope.context_length`.
    if not isinstance(longest, int) or "yarn" in (rope.get("rope_type"), rope.get("type")):
        return None
    family = ENCODER_FAMILIES.get(str(config.get("model_type")))
    if family and family.positions_follow_pad:
        longest -= config.get("pad_token_id", 1) + 1
    return longest


def servable(checkpoint: Path, ranks: int = 1, on_gpu: bool = False) -> Capabilities:
    """Sort the models into those that a checkpoint can serve, on so many devices each, and the others."""
    left_out: dict[str, str] = {}
    config = stored_config(checkpoint)
    if not has_tokenizer(checkpoint):
        left_out["tokenizer"] = no_tokenizer(checkpoint)
    unread = unreadable(checkpoint)
    if reason := unscorable(config, on_gpu, ranks) or undividable(config, ranks) or unread:
        left_out["scorer"] = reason
    if left_out:
        left_out |= dict.fromkeys(ENSEMBLES, f"it needs the {' and the '.join(left_out)}")
    elif scores_tokens(config.get("architectures")):
        left_out |= dict.fromkeys(ENSEMBLES, "the model scores tokens: 'scorer' has outputs for them")
    elif not is_classifier(config.get("architectures")):
        left_out["classify"] = "a language model has no labels of its own; 'score' takes them with each call"
    if reason := undecodable(config, on_gpu) or undividable(config, ranks) or unread:
        left_out["decode"] = reason
    family = family_of(config)
    selectors = family.selectors if family else ()
    return Capabilities(tuple(name for name in MODELS if name not in left_out), left_out, selectors)


def choose_selector(asked: Selector, selectors: Sequence[Selector]) -> Selector:
    """Choose one of a checkpoint's selectors, which begin with its default, or raise ValueError."""
    if asked == "auto":
        return selectors[0]
    if asked not in selectors:
        raise ValueError(f"SELECTOR is '{asked}': this checkpoint has {', '.join(selectors)}")
    return asked


def unsupported(config: Config) -> str | None:
    """Reason why no model can compute a checkpoint with this config.json, or None if one can."""
    try:
        return _broken_rule(config)
    # A value of another kind than a rule looks at, which transformers would not take either.
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        return f"config.json is malformed: {error}"


def _broken_rule(config: Config) -> str | None:
    family, of_texts = family_of(config), text_config(config)
    if family is None:
        served = (*DECODER_FAMILIES, *TEXT_TOWERS, *ENCODER_FAMILIES)
        of_tower = "" if of_texts is config else f" with a text_config of '{of_texts['model_type']}'"
        return f"model_type '{config.get('model_type')}'{of_tower} is none of {', '.join(served)}"
    # transformers makes the mask of a text tower from either config.
    of_whole = () if of_texts is config else (CAUSAL_RULE, UNIDIRECTIONAL_RULE)
    uniform = () if getattr(family, "sizes_by_layer", False) else (UNIFORM_RULE,)
    rules = [(rule, config) for rule in (unknown_class, *COMMON_RULES, *of_whole)]
    rules += [(rule, of_texts) for rule in (*COMMON_RULES, *of_whole, *uniform, *family.rules)]
    return next((reason for rule, part in rules if (reason := rule(part))), None)


def unscorable(config: Config, on_gpu: bool = False, ranks: int = 1) -> str | None:
    """Reason why the scorer cannot serve a checkpoint with this config.json, or None if it can."""
    latent = isinstance(family := family_of(config), DsaFamily)
    if latent and ranks > 1:
        return f"TENSOR_PARALLEL is {ranks}, and latent attention is scored on one device"
    if on_gpu and (latent or any(getattr(family, each, False) for each in ("sizes_by_layer", "convolved"))):
        return f"model_type '{config['model_type']}' is scored on a CPU alone: set DEVICE=cpu"
    return unsupported(config)


def undecodable(config: Config, on_gpu: bool = False) -> str | None:
    """Reason why `decode` cannot serve a checkpoint with this config.json, or None if it can."""
    if reason := unsupported(config):
        return reason
    family = family_of(config)
    if on_gpu and isinstance(family, DsaFamily) and not family.indexed:
        return f"model_type '{family.name}' is decoded on a CPU alone: set DEVICE=cpu"
    if on_gpu and getattr(family, "recurrent", False):
        return (
            f"model_type '{config['model_type']}' has recurrent layers, which decode computes on a CPU alone"
        )
    if getattr(family, "sizes_by_layer", False):
        return f"model_type '{config['model_type']}' has layers of different sizes, which are scored alone"
    if is_classifier(config["architectures"]):
        return f"architecture '{config['architectures'][0]}' has no head for tokens"
    return None


def read_step_id(checkpoint: Path) -> int | None:
    """Id of the token that ends each step of a solution, for a process reward model; None: it names none."""
    config = json.loads((checkpoint / "config.json").read_text())
    if not (config.get("architectures") or [""])[0].endswith(PROCESS_REWARD_MODEL):
        return None
    tokens = json.loads((checkpoint / TOKENIZER_FILE).read_text()) if has_tokenizer(checkpoint) else {}
    added = {token["content"]: int(token["id"]) for token in tokens.get("added_tokens") or ()}
    found: int | None = config.get("step_tag_id", added.get(STEP_TAG))
    return found


def label_names(checkpoint: Path) -> tuple[str, ...]:
    """Names of a classifier's labels, in order: LABEL_0 and so on for those without one, as in transformers."""
    config = stored_config(checkpoint)
    architectures = config.get("architectures") or ()
    if not is_classifier(architectures):
        return ()
    if (count := own_label_count(architectures)) is not None:
        return tuple(f"LABEL_{number}" for number in range(count))
    named = {int(number): str(name) for number, name in (config.get("id2label") or {}).items()}
    return tuple(named.get(number, f"LABEL_{number}") for number in range(max(named, default=-1) + 1))


def has_tokenizer(checkpoint: Path) -> bool:
    """True if the checkpoint comes with a tokenizer; without one, `decode` takes and returns only ids."""
    return (checkpoint / TOKENIZER_FILE).is_file()


def no_tokenizer(checkpoint: Path) -> str:
    """Reason why a checkpoint without tokenizer.json has no tokenizer, and what to do about it."""
    others = [name for name in UNCONVERTED_TOKENIZERS if (checkpoint / name).is_file()]
    if not others:
        return f"the checkpoint has no {TOKENIZER_FILE}"
    return (
        f"the checkpoint has {others[0]}, but no {TOKENIZER_FILE}: write one with transformers "
        "(AutoTokenizer.from_pretrained, then save_pretrained)"
    )


def read_eos_ids(checkpoint: Path) -> frozenset[int]:
    """The ids that end a text: those of generation_config.json, or where it names none of config.json."""
    for name in ("generation_config.json", "config.json"):
        path = checkpoint / name
        config = json.loads(path.read_text()) if path.is_file() else {}
        ids = config.get("eos_token_id", text_config(config).get("eos_token_id"))
        if ids is not None:
            return frozenset(ids if isinstance(ids, list) else [ids])
    return frozenset()
