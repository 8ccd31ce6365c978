"""Every arm has settings that the server takes."""

import json

import pytest

from hiscore.decoding.sampling_params import parse_sampling_params
from hiscore.settings import CacheSettings
from perf.decoding.comparison_groups import groups
from perf.decoding.engine_load import Load


@pytest.mark.parametrize("family", ["grouped", "latent"])
@pytest.mark.parametrize("prompt", [300, 8_192])
def test_all_arms_have_settings_that_hold(family: str, prompt: int) -> None:
    for arms in groups(family, Load(3, prompt, 20)).values():
        assert len({arm.name for arm in arms}) == len(arms)
        for arm in arms:
            assert CacheSettings(**arm.settings).selector == arm.settings["selector"]
            parse_sampling_params(json.dumps(dict(arm.sampling)))
