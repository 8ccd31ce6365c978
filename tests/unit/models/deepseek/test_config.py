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


def test_sizes_are_read() -> None:
    a = architecture(tie_word_embeddings=False)
    assert (a.layers, a.heads, a.hidden_size) == (4, 4, 64)
    assert (a.latent_rank, a.rope_dim, a.row_dim) == (32, 16, 48)
    assert (a.q_rank, a.nope_dim, a.value_dim) == (48, 24, 20)
    assert (a.indexer.heads, a.indexer.head_dim, a.indexer.top_k) == (8, 32, 16)
    routing = a.experts.routing
    assert (a.experts.count, routing.per_token, routing.groups, routing.groups_per_token) == (8, 3, 4, 2)
    assert (a.experts.width, a.shared_width) == (32, 64)
    assert a.routed == (False, True, True, True)
    assert not a.tied_head


def test_the_families_pair_the_indexer_s_dimensions_differently() -> None:
    assert not architecture("deepseek_v32").indexer.interleaved
    assert architecture("glm_moe_dsa").indexer.interleaved


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


def test_layers_that_predict_further_tokens_are_counted() -> None:
    assert architecture(num_nextn_predict_layers=2).lookahead_layers == 2
    assert architecture(num_nextn_predict_layers=None).lookahead_layers == 0
