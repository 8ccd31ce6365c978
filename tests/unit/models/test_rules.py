"""What a rule refuses, and what it says."""

from typing import Any

import pytest

from hiscore.models.rules import (
    Rule,
    key_rule,
    model_class_rule,
    one_of,
    one_rope,
    rope_type_rule,
    unset,
    whole_heads_rotated,
)


@pytest.mark.parametrize(
    ("rule", "config", "reason"),
    [
        (key_rule("a", one_of(1, None), "a is {value}"), {}, None),
        (key_rule("a", one_of(1, None), "a is {value}"), {"a": None}, None),
        (key_rule("a", one_of(1, None), "a is {value}"), {"a": 1}, None),
        (key_rule("a", one_of(1, None), "a is {value}"), {"a": 2}, "a is 2"),
        (key_rule("a", unset, "a is {value}"), {"a": {}}, None),
        (key_rule("a", unset, "a is {value}"), {"a": 0.5}, "a is 0.5"),
        (model_class_rule("LM", "C", reason="is odd"), {"architectures": ["TheC"]}, None),
        (
            model_class_rule("LM", "C", reason="is odd"),
            {"architectures": ["Model", "LM"]},
            "architecture 'Model' is odd",
        ),
        (model_class_rule("LM", reason="is odd"), {"architectures": []}, "architecture 'none' is odd"),
        (rope_type_rule("default", "yarn"), {"rope_parameters": None, "rope_scaling": None}, None),
        (rope_type_rule("yarn"), {}, "rope type 'default' is none of yarn"),
        (
            rope_type_rule("default"),
            {"rope_parameters": {"rope_type": "default"}, "rope_scaling": {"type": "dynamic"}},
            "rope type 'dynamic' is none of default",
        ),
        (whole_heads_rotated, {"partial_rotary_factor": 1.0, "rope_parameters": None}, None),
        (whole_heads_rotated, {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5"),
        (
            whole_heads_rotated,
            {"rope_scaling": {"partial_rotary_factor": 0.25}},
            "partial_rotary_factor is 0.25",
        ),
        (one_rope, {"rope_parameters": {"rope_type": "default"}}, None),
        (one_rope, {"rope_parameters": {"full_attention": {}}}, "its kinds of layers"),
        (rope_type_rule("default", "yarn"), {"rope_scaling": {"type": "yarn"}}, None),
        (
            rope_type_rule("default"),
            {"rope_scaling": {"rope_type": "yarn", "type": "default"}},
            "rope type 'yarn'",
        ),
        (
            rope_type_rule("default"),
            {"rope_parameters": {"full": {"rope_theta": 1}, "sliding": {"type": "dynamic"}}},
            "rope type 'dynamic' is none of default",
        ),
    ],
)
def test_a_rule_refuses_what_is_not_implemented(
    rule: Rule, config: dict[str, Any], reason: str | None
) -> None:
    found = rule(config)
    assert found == reason or (reason is not None and str(found).startswith(reason))
