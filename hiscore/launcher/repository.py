"""Write the model repository that tritonserver reads, from our config templates."""

import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from hiscore.launcher.device_choice import visible_gpus
from hiscore.launcher.errors import LaunchError
from hiscore.models.support import DEFAULT_MODELS, MODELS, Capabilities
from hiscore.settings import MODEL_SETTINGS, MODEL_SETTINGS_FILE, Selector, ServeSettings
from hiscore.settings.groups import TextLimit

TEMPLATES = Path(__file__).resolve().parents[2] / "model_repository"
CONFIG = "config.pbtxt"
SETTINGS = "settings"
"""Among a model's values: its settings as JSON, for a file of their own."""
DEFAULT_BATCH_TOKENS = {"cpu": 2_048, "cuda": 16_384}
"""A GPU needs many rows for its full speed, a CPU few."""
SHARED_BATCH_CALLS = 8
"""Calls that Triton hands at once to one of several scorers: the others must get some of those that wait, too."""

Values = Mapping[str, object]


def templates() -> Path:
    """The directory of the models' templates: where hiscore is installed apart from it, a variable names it."""
    return Path(os.environ.get("HISCORE_MODEL_REPOSITORY") or TEMPLATES)


def render(template: str, values: Values) -> str:
    """Replace every ``${name}`` of a config template.

    Raises:
        LaunchError: A placeholder without a value, a value without a placeholder, or a malformed placeholder.
    """
    named = set(re.findall(r"\$\{(\w+)\}", template))
    unfilled, unused = sorted(named - set(values)), sorted(set(values) - named)
    if unfilled:
        raise LaunchError(f"no value for the placeholder ${{{unfilled[0]}}}")
    if unused:
        raise LaunchError(f"no placeholder for the setting '{unused[0]}'")
    malformed = re.search(r"\$(?!\{\w+\}).{0,20}", template)
    if malformed:
        raise LaunchError(f"malformed placeholder at '{malformed.group()}'")
    return re.sub(r"\$\{(\w+)\}", lambda match: _quoted(values[match.group(1)]), template)


def _quoted(value: object) -> str:
    """Escape a value for a string in protobuf's text format."""
    return re.sub(r'(["\\])', r"\\\1", str(value)).replace("\n", r"\n")


def write_repository(source: Path, target: Path, values: Mapping[str, Values]) -> None:
    """Write the models in `values` from the templates and ``1/`` directories of `source`.

    Raises:
        LaunchError: A template is missing or does not fit its values; the message names the file.
    """
    for model, model_values in values.items():
        template = source / model / CONFIG
        if not template.is_file():
            raise LaunchError(
                f"{template} is missing: HISCORE_MODEL_REPOSITORY must name hiscore's model_repository/"
            )
        # The version directory of the ensemble is empty, but Triton requires it.
        shutil.copytree(source / model, target / model, ignore=shutil.ignore_patterns("__pycache__"))
        # Callers can read config.pbtxt over HTTP; what is in this file is none of their business.
        placeholders = {name: value for name, value in model_values.items() if name != SETTINGS}
        if SETTINGS in model_values:
            file = target / model / MODEL_SETTINGS_FILE
            file.write_text(str(model_values[SETTINGS]), encoding="utf-8")
        try:
            text = render(template.read_text(encoding="utf-8"), placeholders)
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
    """Choose each model's values by placeholder; `selectors` begins with the checkpoint's default.

    Raises:
        LaunchError: SELECTOR is not one of `selectors`, and `decode` is to be loaded.
    """
    given: dict[str, Any] = dict(settings) | {"checkpoint": str(checkpoint)}
    given["max_batch_tokens"] = batch_tokens(settings, device)
    given["takes_text"] = "score" in models
    given["max_text_bytes"] = text_bytes(settings)
    if "decode" in models:
        given["selector"] = _selector(settings, selectors)
    alone: dict[str, object] = {"max_batch_calls": settings.max_batch_calls}
    several = num_instances(settings, device) > 1
    shared = {"max_batch_calls": min(settings.max_batch_calls, SHARED_BATCH_CALLS)} if several else alone
    instances: dict[str, object] = {
        "instances": instances_on(device, settings.tensor_parallel, settings.cpu_instances)
    }
    placeholders = {
        # No ensemble may have larger batches than its step.
        "score": shared,
        "tokenizer": alone,
        "scorer": shared | instances,
        "decode": instances,
    }
    return {
        model: placeholders[model]
        | ({SETTINGS: _settings_json(model, given)} if model in MODEL_SETTINGS else {})
        for model in models
    }


def text_bytes(settings: ServeSettings) -> int:
    """Bytes of text that one call may hold: two for each of MAX_CALL_TOKENS, but no less than by default."""
    return max(TextLimit().max_text_bytes, 2 * settings.max_call_tokens)


def num_instances(settings: ServeSettings, device: Literal["cpu", "cuda"]) -> int:
    """Count the instances that `scorer` has, and `decode` likewise."""
    return settings.cpu_instances if device == "cpu" else visible_gpus() // settings.tensor_parallel


def instances_on(device: Literal["cpu", "cuda"], ranks: int, on_cpu: int) -> str:
    """Place the instances of a model: `on_cpu`, or one on the first of each group of `ranks` GPUs."""
    if device == "cpu":
        return f"kind: KIND_CPU count: {on_cpu}"
    if ranks == 1:
        return "kind: KIND_GPU count: 1"
    return f"kind: KIND_GPU count: 1 gpus: [ {', '.join(map(str, range(0, visible_gpus(), ranks)))} ]"


def batch_tokens(settings: ServeSettings, device: Literal["cpu", "cuda"]) -> int:
    """MAX_BATCH_TOKENS, or the device's default."""
    return settings.max_batch_tokens or DEFAULT_BATCH_TOKENS[device]


def _selector(settings: ServeSettings, selectors: tuple[Selector, ...]) -> Selector:
    if settings.selector == "auto":
        return selectors[0]
    if settings.selector not in selectors:
        raise LaunchError(f"SELECTOR is '{settings.selector}': this checkpoint has {', '.join(selectors)}")
    return settings.selector


def _settings_json(model: str, given: Mapping[str, Any]) -> str:
    """A model's settings out of the server's, as `hiscore.settings.from_model_directory` reads them."""
    declared = MODEL_SETTINGS[model]
    return declared(**{name: given[name] for name in declared.model_fields}).model_dump_json()


def select(requested: str, capabilities: Capabilities) -> tuple[tuple[str, ...], dict[str, str]]:
    """Choose the models to load, and give the reason for each requested one that is left out.

    `requested` has names separated by commas; empty: the default models.

    Raises:
        LaunchError: An unknown name, an ensemble without its step, or nothing is left.
    """
    names = (
        tuple(dict.fromkeys(filter(None, (name.strip() for name in requested.split(","))))) or DEFAULT_MODELS
    )
    unknown = sorted(set(names) - set(MODELS))
    if unknown:
        raise LaunchError(f"MODELS names '{unknown[0]}': known are {', '.join(MODELS)}")
    if "score" in names and "scorer" not in names:
        raise LaunchError("MODELS names score, which needs scorer: name both")
    left_out = {name: capabilities.left_out[name] for name in names if name not in capabilities.models}
    chosen = tuple(name for name in names if name not in left_out)
    # A tokenizer alone is served only to those who ask for it alone.
    computing = {"scorer", "decode"}
    if not chosen or (computing & set(names) and not computing & set(chosen)):
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise LaunchError(f"no model is left to serve ({reasons})")
    return chosen, left_out
