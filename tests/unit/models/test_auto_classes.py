"""What a process imports for a checkpoint's config and tokenizer."""

import subprocess
import sys

import pytest

OURS = "hiscore.models.auto_classes"
COMPILER = "torch._dynamo"
IMPORTED = f"""
import sys
from {OURS} import AutoConfig, AutoTokenizer
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
def test_no_compiler_comes_with_our_classes():
    """It comes with those of transformers 5.17, not of 5.24: once the bound is higher, our module is needless."""
    assert python(IMPORTED) == "False"


@pytest.mark.slow
@pytest.mark.exhaustive
def test_transformers_models_work_beside_it():
    python(f"import {OURS}\n{A_MODEL_GENERATES}")
