"""Defaults of requests come from generation_config.json as transformers and vLLM read it."""

import json
from pathlib import Path
from typing import Any

import pytest

from hiscore.decoding.requests.generation_config import describe, read_defaults
from hiscore.decoding.requests.sampling_params import NO_DEFAULTS, parse_sampling_params


def written(directory: Path, config: dict[str, Any]) -> Path:
    (directory / "generation_config.json").write_text(json.dumps(config))
    return directory


QWEN3 = {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "eos_token_id": [5, 6]}


def test_what_a_request_gives_comes_first(tmp_path: Path) -> None:
    defaults = read_defaults(written(tmp_path, QWEN3 | {"repetition_penalty": 1.1, "max_length": 20}))
    params = parse_sampling_params('{"top_k": 7}', defaults)
    assert (params.temperature, params.top_k, params.top_p, params.repetition_penalty) == (0.6, 7, 0.95, 1.1)
    assert params.max_tokens == 0
    assert describe(defaults) == "temperature 0.6, top_k 20, top_p 0.95, repetition_penalty 1.1"


@pytest.mark.parametrize("config", [{}, {"temperature": 0.6}, {"do_sample": False, "temperature": 0.6}])
def test_nothing_is_sampled_unless_the_checkpoint_says_so(tmp_path: Path, config: dict[str, Any]) -> None:
    assert read_defaults(written(tmp_path, config)) == NO_DEFAULTS
    assert describe(NO_DEFAULTS) == "nothing"


def test_sampling_without_a_temperature_is_at_1(tmp_path: Path) -> None:
    assert read_defaults(written(tmp_path, {"do_sample": True, "top_k": None})).temperature == 1.0


def test_without_the_file_the_defaults_are_the_usual_ones(tmp_path: Path) -> None:
    assert read_defaults(tmp_path) == NO_DEFAULTS


def test_a_default_out_of_its_bounds_stops_the_start(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"'top_p' must be .* not 1.5 \(GENERATION_CONFIG=off ignores it\)"):
        read_defaults(written(tmp_path, {"top_p": 1.5}))
