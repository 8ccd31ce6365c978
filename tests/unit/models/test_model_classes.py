"""The table of model classes: transformers' own, and no other is served, whatever its name ends in."""

from typing import Any

import pytest
from transformers.models.auto import modeling_auto as auto

from hiscore.models.encoder_families import ENCODER_FAMILIES
from hiscore.models.families import DECODER_FAMILIES, DSA_FAMILIES
from hiscore.models.model_classes import MODEL_CLASSES
from hiscore.models.support import undecodable, unscorable
from hiscore.models.text_towers import TEXT_TOWERS

OF_TEXTS = auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
OF_IMAGES = auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
CLASSIFIERS = auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES
OF_TOKENS = auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES
OWN = {
    "new": {"NewForSequenceClassification"},
    "llama_bidirec": {"LlamaBidirectionalForSequenceClassification"},
    "ministral": {each["mistral"] for each in (OF_TEXTS, CLASSIFIERS, OF_TOKENS)},
    "qwen2": {"Qwen2ForRewardModel", "Qwen2ForProcessRewardModel"},
    "qwen3": {"Qwen3ForRewardModel", "Qwen3ForGuardModel", "JinaForRanking"},
}
"""Classes that are not transformers' for a model_type: code of the checkpoint's own."""
UNSERVED = {"deepseek_v3": {"DeepseekV3ForSequenceClassification", "DeepseekV3ForTokenClassification"}}


def test_the_classes_are_those_that_transformers_loads() -> None:
    """Those of the Auto classes: a causal LM of texts, or of texts and images, and classifiers."""
    served = {*DECODER_FAMILIES, *DSA_FAMILIES, *ENCODER_FAMILIES, *TEXT_TOWERS}
    # Configs of a text tower alone have no class.
    assert served - {*MODEL_CLASSES} == {name for name in served if name.endswith("_vl_text")}
    assert {*MODEL_CLASSES} <= served
    for name, classes in MODEL_CLASSES.items():
        generates = {} if name in ENCODER_FAMILIES else OF_IMAGES if name in TEXT_TOWERS else OF_TEXTS
        found = (kind.get(name) for kind in (generates, CLASSIFIERS, OF_TOKENS))
        known = {each for each in found if each} | OWN.get(name, set())
        assert set(classes) == known - UNSERVED.get(name, set()), name


@pytest.mark.parametrize("model_type", MODEL_CLASSES)
def test_any_other_class_is_refused_by_name(model_type: str) -> None:
    """The kind: a prefix or a middle of the author's own, with an ending that is served."""
    for name in MODEL_CLASSES[model_type]:
        config: dict[str, Any] = {"model_type": model_type, "architectures": [name]}
        assert "architecture" not in f"{unscorable(config)}"
        for other in (f"My{name}", name.replace("For", "BidirectionalFor"), name[1:]):
            for reason in (unscorable, undecodable):
                said = reason({**config, "architectures": [other], "auto_map": {"AutoModel": "own.Class"}})
                if model_type in DSA_FAMILIES and reason is unscorable:
                    continue
                assert said == (
                    f"architecture '{other}' of model_type '{model_type}' is none of "
                    f"{', '.join(MODEL_CLASSES[model_type])} (its auto_map names code of its own, 'own.Class', "
                    "which is never run)"
                )
