"""Defaults of request parameters that a checkpoint suggests in generation_config.json."""

import json
from dataclasses import replace
from pathlib import Path

from hiscore.decoding.requests.sampling_params import NO_DEFAULTS, SamplingParams, parse_sampling_params
from hiscore.errors import RequestError

NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
"""Parameters that vLLM takes from there; ids that end a sequence are read in any case."""


def read_defaults(checkpoint: Path) -> SamplingParams:
    """Read the suggested defaults, the usual ones without the file; ``do_sample`` must be true for sampling.

    Raises:
        ValueError: One of them is out of its bounds.
    """
    path = checkpoint / "generation_config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    found = {name: config[name] for name in NAMES if config.get(name) is not None}
    if config.get("do_sample"):
        found.setdefault("temperature", 1.0)
    else:
        found.pop("temperature", None)
    try:
        params = parse_sampling_params(json.dumps(found))
    except RequestError as error:
        raise ValueError(f"{path}: {error.message} (GENERATION_CONFIG=off ignores it)") from None
    return replace(params, seed=NO_DEFAULTS.seed)


def describe(defaults: SamplingParams) -> str:
    """Describe differences from the usual defaults, for the log."""
    changed = (name for name in NAMES if getattr(defaults, name) != getattr(NO_DEFAULTS, name))
    return ", ".join(f"{name} {getattr(defaults, name):g}" for name in changed) or "nothing"
