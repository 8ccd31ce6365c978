"""The model repository that tritonserver reads: our templates with every ``${name}`` filled, strictly."""

import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hiscore.launcher.errors import LaunchError
from hiscore.models.support import DEFAULT_MODELS, MODELS, Capabilities
from hiscore.settings import (
    CacheSettings,
    DecodeSettings,
    Limits,
    ScorerSettings,
    Selector,
    ServeSettings,
    TokenizerSettings,
)

CONFIG = "config.pbtxt"

Values = Mapping[str, object]


def render(template: str, values: Values) -> str:
    """Fill a config template.

    Raises:
        LaunchError: a placeholder without a value, a value without a placeholder, or a malformed placeholder.
    """
    asked = set(re.findall(r"\$\{(\w+)\}", template))
    unfilled, unused = sorted(asked - set(values)), sorted(set(values) - asked)
    if unfilled:
        raise LaunchError(f"no value for the placeholder ${{{unfilled[0]}}}")
    if unused:
        raise LaunchError(f"no placeholder for the setting '{unused[0]}'")
    malformed = re.search(r"\$(?!\{\w+\}).{0,20}", template)
    if malformed:
        raise LaunchError(f"malformed placeholder at '{malformed.group()}'")
    return re.sub(r"\$\{(\w+)\}", lambda match: _quoted(values[match.group(1)]), template)


def _quoted(value: object) -> str:
    """The value's text, escaped for a protobuf text string."""
    return re.sub(r'(["\\])', r"\\\1", str(value)).replace("\n", r"\n")


def write_repository(source: Path, target: Path, values: Mapping[str, Values]) -> None:
    """Write each model named in `values` from its template and its ``1/`` directory under `source`.

    Raises:
        LaunchError: `render` refuses a template; the message names the file.
    """
    for model, model_values in values.items():
        template = source / model / CONFIG
        if not template.is_file():
            raise LaunchError(
                f"{template} is missing: MODEL_REPOSITORY must name hiscore's model_repository/"
            )
        # An ensemble has no model.py, yet Triton wants its version directory.
        shutil.copytree(source / model, target / model, ignore=shutil.ignore_patterns("__pycache__"))
        try:
            text = render(template.read_text(encoding="utf-8"), model_values)
        except LaunchError as error:
            raise LaunchError(f"{template}: {error}") from None
        (target / model / CONFIG).write_text(text, encoding="utf-8")


def model_values(
    settings: ServeSettings,
    checkpoint: Path,
    device: Literal["cpu", "cuda"],
    models: tuple[str, ...],
    selectors: tuple[Selector, ...],
) -> dict[str, Values]:
    """What fills each model's template: its own settings, and how Triton queues and batches for it.

    selectors: those that the checkpoint has, the default first.

    Raises:
        LaunchError: SELECTOR is none of them, and `decode` is to be loaded.
    """
    limits = settings.model_dump(include=set(Limits.model_fields))
    batching = {"max_batch_calls": settings.max_batch_calls}
    common: dict[str, Any] = settings.model_dump(include={"max_queue", "queue_timeout_s", "log_format"})
    tokenizer = TokenizerSettings(checkpoint=str(checkpoint), **common, **limits)
    scorer = ScorerSettings(
        checkpoint=str(checkpoint),
        dtype=settings.dtype,
        max_batch_tokens=settings.max_batch_tokens,
        max_queue_tokens=settings.max_queue_tokens,
        query_cache_bytes=settings.query_cache_bytes,
        **common,
        **limits,
    )
    kind = "KIND_GPU" if device == "cuda" else "KIND_CPU"
    if "decode" in models and settings.selector not in ("auto", *selectors):
        raise LaunchError(f"SELECTOR is '{settings.selector}': this checkpoint has {', '.join(selectors)}")
    cache: dict[str, Any] = settings.model_dump(include=set(CacheSettings.model_fields) - {"selector"})
    decode = DecodeSettings(
        checkpoint=str(checkpoint),
        dtype=settings.dtype,
        selector=selectors[0] if settings.selector == "auto" else settings.selector,
        max_text_bytes=settings.max_text_bytes,
        **common,
        **cache,
    )
    every: dict[str, Values] = {
        "score": batching,
        "tokenizer": tokenizer.model_dump() | batching,
        "scorer": scorer.model_dump() | batching | {"instance_kind": kind},
        "decode": decode.model_dump() | {"instance_kind": kind},
    }
    return {model: every[model] for model in models}


def select(requested: str, capabilities: Capabilities) -> tuple[tuple[str, ...], dict[str, str]]:
    """Which models to load of those requested (comma-separated; empty: by default), and why others are left out.

    Raises:
        LaunchError: an unknown name, an ensemble without its steps, or nothing is left.
    """
    names = (
        tuple(dict.fromkeys(filter(None, (name.strip() for name in requested.split(","))))) or DEFAULT_MODELS
    )
    unknown = sorted(set(names) - set(MODELS))
    if unknown:
        raise LaunchError(f"MODELS names '{unknown[0]}': known are {', '.join(MODELS)}")
    missing = [name for name in ("tokenizer", "scorer") if name not in names]
    if "score" in names and missing:
        raise LaunchError(f"MODELS names score, which needs {' and '.join(missing)}: name all three")
    left_out = {name: capabilities.left_out[name] for name in names if name not in capabilities.models}
    chosen = tuple(name for name in names if name not in left_out)
    if not chosen:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise LaunchError(f"no model is left to serve ({reasons})")
    return chosen, left_out
