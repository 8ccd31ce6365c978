"""What a process imports for a checkpoint's config and tokenizer."""

import subprocess
import sys

import pytest

from tests.support.tiers import first_of

OURS, THEIRS = "hiscore.models.auto_classes", "transformers"
COMPILER = "torch._dynamo"
IMPORTED = f"""
import sys
from {{module}} import AutoConfig, AutoTokenizer
AutoConfig.for_model("llama")
print("{COMPILER}" in sys.modules)
"""
A_MODEL_GENERATES = """
from transformers import AutoConfig, AutoModelForCausalLM
sizes = dict(hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=8)
model = AutoModelForCausalLM.from_config(AutoConfig.for_model("llama", **sizes))
assert model.generate(inputs=model.dummy_inputs["input_ids"] % 8, max_new_tokens=1, do_sample=False).shape[1] > 1
"""


def python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=300
    )
    return done.stdout.strip()


@pytest.mark.slow
@pytest.mark.parametrize(("module", "expected"), first_of((OURS, "False"), (THEIRS, "True")))
def test_no_compiler_comes_with_our_classes_as_it_does_with_transformers_own(module: str, expected: str):
    """If the second fails, transformers has mended it, and our module is of no use any more."""
    assert python(IMPORTED.format(module=module)) == expected


@pytest.mark.slow
@pytest.mark.exhaustive
def test_transformers_models_work_beside_it():
    python(f"import {OURS}\n{A_MODEL_GENERATES}")
