"""Checkpoints whose config.json has one key changed."""

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from transformers import AutoConfig

from hiscore.models.errors import UnsupportedCheckpoint
from tests.support.tiny_models import LLAMA3, YARN

ROPES: list[Any] = [
    {"rope_type": "default", "rope_theta": 500.0},
    {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
    {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0},
    {"rope_type": "linear", "rope_theta": 500.0, "factor": 3.0, "partial_rotary_factor": 0.5},
    {"type": "dynamic", "factor": 3.0},
    {"rope_type": "linear"},
    {"rope_type": "linear", "factor": "twice"},
    {"rope_type": "llama3", "factor": 8.0},
    {"rope_type": "yarn"},
    {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 1_024},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": None},
    {"rope_type": None},
    {},
    {**YARN, "factor": 8.0, "beta_fast": 16, "beta_slow": 2, "attention_factor": 0.7, "truncate": False},
    {**YARN, "mscale": 0.7, "mscale_all_dim": 0.5},
    LLAMA3,
    {
        "full_attention": {"rope_type": "linear", "rope_theta": 700.0, "factor": 2.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
    },
]
ROPE_KEYS = ("rope_parameters", "rope_scaling")
FULL, SLIDING = "full_attention", "sliding_attention"
VALUES: dict[str, list[Any]] = {
    "hidden_act": ["relu", "gelu", "silu", "gelu_pytorch_tanh"],
    "hidden_activation": ["relu", "gelu", "silu", "gelu_pytorch_tanh", None],
    "is_causal": [False, None, True],
    "layer_types": [[SLIDING] * 4, [FULL, SLIDING] * 2, ["chunked_attention"] * 4, [FULL] * 3],
    "output_hidden_states": [True],
    "partial_rotary_factor": [0.5, 1.0],
    "per_layer_config": [{"0": {"intermediate_size": 48}}],
    "rope_local_base_freq": [300.0],
    "rope_parameters": ROPES,
    "rope_scaling": ROPES,
    "rope_theta": [500.0],
    "sliding_window": [None, 3, 9],
    "use_sliding_window": [True, False],
}
"""Those of special meaning; the others are changed by their type."""
TOGETHER: list[dict[str, Any]] = [
    {"layer_types": [SLIDING] * 4, "sliding_window": 5},
    {"layer_types": [FULL, SLIDING] * 2, "sliding_window": 5, "use_sliding_window": True},
    {"max_window_layers": 1, "sliding_window": 5, "use_sliding_window": True},
    {"rope_parameters": ROPES[0], "rope_scaling": ROPES[2]},
    {"rope_parameters": ROPES[0], "rope_scaling": {"rope_type": "dynamic", "factor": 3.0}},
]
"""Keys that change nothing one at a time."""
IGNORED = {"model_type", "return_dict", "spatial_merge_size", "vision_config"}
"""Keys that choose another class or the shape in which transformers returns the same, and those of images."""


def others(value: Any) -> list[Any]:
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value // 2]
        case float():
            return [2 * value + 0.25]
        case None:
            return [True, 3, 0.5]
    return []


def keys_of(model_types: Iterable[str]) -> set[str]:
    """Every key that the config class of one of these declares."""
    return {
        field.name
        for model_type in model_types
        for field in dataclasses.fields(type(AutoConfig.for_model(model_type)))
    }


Kind = Callable[[dict[str, Any], set[str]], Iterator[dict[str, Any]]]


def wrong(
    source: Path,
    target: Path,
    keys: set[str],
    read: Callable[[Path], Any],
    verdict: Callable[[Path, bool], str | None],
) -> dict[str, str]:
    """By change to a checkpoint's config, most of them of one key, what is wrong with how it is served.

    Keys that nobody declares are changed together, where we read the same with each of them: if transformers obeys
    one, that shows. If something is wrong then, each is changed alone.

    Args:
        source: The checkpoint.
        target: A directory for the changed ones.
        keys: That config classes of other families declare.
        read: What we read of a checkpoint's config.
        verdict: Of a checkpoint, and whether it has to be served: what is wrong, if anything.
    """

    def with_changes(changes: dict[str, Any]) -> Path:
        return changed(source, target, **changes)

    def reads_alike(changes: dict[str, Any]) -> bool:
        try:
            return bool(read(with_changes(changes)) == unchanged)
        except UnsupportedCheckpoint:
            return False

    original, unchanged = json.loads((source / "config.json").read_text()), read(source)
    alone, alike = [{}, *_of_towers(_known, original, keys)], list[dict[str, Any]]()
    for changes in _of_towers(_of_other_families, original, keys):
        (alike if reads_alike(changes) else alone).append(changes)
    together = _merged(alike)
    found = {str(changes): verdict(with_changes(changes), False) for changes in alone}
    if said := verdict(with_changes(together), True):
        found[str(together)] = said
        found |= {str(changes): verdict(with_changes(changes), False) for changes in alike}
    return {changes: said for changes, said in found.items() if said}


def _merged(many: list[dict[str, Any]]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for changes in many:
        for key, value in changes.items():
            merged[key] = merged[key] | value if isinstance(merged.get(key), dict) else value
    return merged


def _of_towers(kind: Kind, original: dict[str, Any], keys: set[str]) -> Iterator[dict[str, Any]]:
    """Changes of a kind to a config, and to that of a text tower."""
    yield from kind(original, keys)
    if "text_config" in original:
        of_texts = original["text_config"]
        for changes in kind(of_texts, keys):
            yield {"text_config": of_texts | changes}


def _known(original: dict[str, Any], keys: set[str]) -> Iterator[dict[str, Any]]:
    """Other values of what is declared or there, or has a meaning for some family."""
    # transformers' own sections of a model of images are for larger heads.
    sections = (original.get("rope_parameters") or {}).get("mrope_section")
    for changes in _plain(original, keys):
        yield {
            key: {"mrope_section": sections, **value} if sections and key in ROPE_KEYS else value
            for key, value in changes.items()
            if key not in original or original[key] != value
        }


def _plain(original: dict[str, Any], keys: set[str]) -> Iterator[dict[str, Any]]:
    declared = keys_of([original["model_type"]])
    for key in sorted((declared | (keys & original.keys()) | VALUES.keys()) - IGNORED):
        for value in VALUES.get(key, others(original.get(key))):
            yield {key: value}
    yield from TOGETHER


def _of_other_families(original: dict[str, Any], keys: set[str]) -> Iterator[dict[str, Any]]:
    """Keys of other families; transformers may still look for one, and one value will show it."""
    for key in sorted(keys - keys_of([original["model_type"]]) - original.keys() - VALUES.keys() - IGNORED):
        yield {key: 3}


def changed(source: Path, target: Path, **changes: Any) -> Path:
    target.mkdir(exist_ok=True)
    for path in source.iterdir():
        if path.name != "config.json" and not (target / path.name).exists():
            (target / path.name).symlink_to(path)
    original = json.loads((source / "config.json").read_text())
    (target / "config.json").write_text(json.dumps(original | changes))
    return target


def verdict_of(
    load: Callable[[Path], Any],
    truth: Callable[[Path], Any],
    compare: Callable[[Any, Any], None],
    checkpoint: Path,
    must_serve: bool = False,
) -> str | None:
    """Say what is wrong with how a checkpoint is served, if anything.

    Args:
        load: Makes what serves a checkpoint.
        truth: Computes what transformers computes of it.
        compare: Raises where what is served differs from the truth.
    """
    try:
        served = load(checkpoint)
    except UnsupportedCheckpoint as refusal:
        if must_serve:
            return f"is refused: {refusal}"
        return None if str(refusal) else "refused without a reason"
    except Exception as error:
        return f"fails with {error!r}"
    try:
        expected = truth(checkpoint)
    except Exception as error:
        return f"is served, and transformers refuses it: {error!r}"
    try:
        compare(served, expected)
    except Exception as error:
        return f"is computed otherwise: {error!r}"
    return None
