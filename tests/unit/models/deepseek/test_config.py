"""What config.json says of a checkpoint with a lightning indexer."""

import math
from typing import Any

import pytest
from transformers import AutoConfig

from hiscore.models.deepseek.config import DsaArchitecture, from_config
from hiscore.models.errors import UnsupportedCheckpoint
from tests.support.tiny_dsa import SIZES, YARN


def architecture(model_type: str = "deepseek_v32", **changes: Any) -> DsaArchitecture:
    return from_config(AutoConfig.for_model(model_type, **{**SIZES, **changes}))


def test_layers_may_share_a_selection_but_not_the_first() -> None:
    assert architecture().own_index == (True,) * 4
    kinds = ["full", "shared", "shared", "full"]
    assert architecture("glm_moe_dsa", indexer_types=kinds).own_index == (True, False, False, True)
    for wrong in (["shared", "full", "full", "full"], ["full"] * 3):
        config = AutoConfig.for_model("glm_moe_dsa", **SIZES)
        config.indexer_types = wrong
        with pytest.raises(UnsupportedCheckpoint, match="name 4 layers and start with 'full'"):
            from_config(config)


@pytest.mark.parametrize(
    ("rope", "temperature"),
    [
        ({"rope_type": "default", "rope_theta": 10_000.0}, 1.0),
        (YARN, 0.1 * 0.8 * math.log(4) + 1),
        ({**YARN, "factor": 0.5}, 1.0),
        ({**YARN, "mscale_all_dim": 0}, 1.0),
    ],
    ids=["plain", "yarn", "yarn-of-a-half", "yarn-without"],
)
def test_yarn_scales_attention_by_the_square_of_its_factor(rope: dict[str, Any], temperature: float) -> None:
    a = architecture(rope_parameters=rope)
    assert a.attention_scale == pytest.approx((24 + 16) ** -0.5 * temperature**2)
