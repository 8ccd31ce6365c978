"""What is read of a config: the length of the context, and values that no model can have."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub.errors import StrictDataclassClassValidationError
from transformers import AutoConfig

from hiscore.layers.rope import context_length
from hiscore.models.config import from_config, read_architecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.facts import read_facts
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from tests.support.checkpoints import edited_config
from tests.support.comparison import check
from tests.support.scoring import LABELS, score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import SIZES, VOCABULARY, make
from tests.support.truth import Truth

QWEN_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
"""As Qwen's documentation adds it, to a config whose max_position_embeddings it leaves as it was."""


def config_of(model_type: str, **changes: Any) -> Any:
    config = AutoConfig.for_model(model_type, **{**SIZES, **changes})
    config.architectures = ["AnyForCausalLM"]
    return config


@pytest.mark.parametrize(
    ("positions", "scaling", "length"),
    [
        (40_960, None, 40_960),
        (40_960, {**QWEN_YARN, "original_max_position_embeddings": 32_768}, 131_072),
        # Already lengthened.
        (163_840, {"type": "yarn", "factor": 40, "original_max_position_embeddings": 4_096}, 163_840),
        (1_000, {"type": "yarn", "factor": 2.5}, 2_500),
        (1_000, {"type": "linear", "factor": 2.0}, 1_000),
    ],
)
def test_yarn_lengthens_the_context(positions: int, scaling: Any, length: int) -> None:
    scaled = {"rope_scaling": scaling} if scaling else {}
    config = config_of("qwen3", max_position_embeddings=positions, **scaled)
    assert context_length(config) == from_config(config).context_length == length


def test_a_call_beyond_the_original_context_equals_transformers(tmp_path: Path) -> None:
    checkpoint = make("qwen2", tmp_path)
    with edited_config(checkpoint) as config:
        del config["rope_parameters"]
        config |= {"max_position_embeddings": 160, "rope_theta": 10_000.0, "rope_scaling": QWEN_YARN}
    assert read_facts(checkpoint).context_length == 512
    call = random_tokens(np.random.default_rng(0), 470, [40, 3], VOCABULARY)
    scorer = load_decoder_scorer(checkpoint, "cpu", "float32", 128)
    assert scorer.facts.context_length == 512
    found = score(scorer, [call], ScoreOptions())[0]
    check(found, Truth(checkpoint).scores(call.query, call.items, LABELS), over_vocabulary=True)


@pytest.mark.parametrize(
    ("model_type", "changes", "says"),
    [
        ("llama", {"num_key_value_heads": 3}, "4 attention heads cannot share 3 heads of keys and values"),
        (
            "glm",
            {"head_dim": 12, "rope_parameters": {"rope_theta": 1e4, "partial_rotary_factor": 0.75}},
            "partial_rotary_factor rotates 9 of 12 dimensions",
        ),
        ("qwen2", {"head_dim": 0.5}, "head_dim is 0.5, not a positive whole number"),
        ("llama", {"num_hidden_layers": 0}, "layers is 0, not a positive whole number"),
        ("mistral", {"head_dim": 7}, "rotary embeddings need an even one|an even rotary dimension"),
        ("qwen2", {"layer_types": ["chunked_attention"] * 4}, "layer type 'chunked_attention' is none of"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 4}, "there is no sliding_window"),
    ],
)
def test_sizes_that_no_model_has_are_named(model_type: str, changes: dict[str, Any], says: str) -> None:
    # Some of them transformers' class refuses by itself since 5.24.
    with pytest.raises((UnsupportedCheckpoint, StrictDataclassClassValidationError), match=says):
        from_config(config_of(model_type, **changes))


def test_what_transformers_refuses_is_refused_in_its_words(tmp_path: Path) -> None:
    checkpoint = make("llama", tmp_path)
    with edited_config(checkpoint) as config:
        config["hidden_size"] = "wide"
    with pytest.raises(UnsupportedCheckpoint, match=r"transformers refuses config\.json: .*hidden_size"):
        read_architecture(checkpoint)
