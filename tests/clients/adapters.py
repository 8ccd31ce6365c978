"""Write adapters with PEFT, and print the logits that it computes of sequences, one at a time in float32.

usage: .venv/bin/python tests/clients/adapters.py PACKAGES DIRECTORY SEQUENCES INVOCATION

PACKAGES are the clients' environment, of which only what the server's lacks is taken: torch is not in it.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.append(sys.argv[1])
sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification

from tests.support import tiny_models

SPREAD = 0.3
MIXED = {"rank_pattern": {"down_proj": 8, r"layers\.1\..*q_proj": 2}, "alpha_pattern": {"o_proj": 5}}
ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"target_modules": "all-linear", "r": 4, "lora_alpha": 6},
    "mixed": {"target_modules": ["q_proj", "o_proj", "down_proj"], "r": 4, "use_rslora": True, **MIXED},
    "some": {"target_modules": ["k_proj", "up_proj"], "layers_to_transform": [1, 3], "lora_dropout": 0.5},
    "regex": {"target_modules": r".*\.[02]\.(self_attn|mlp)\..*_proj", "exclude_modules": ["v_proj"]},
    "late": {
        "target_modules": ["q_proj", "k_proj", "v_proj"],
        "alora_invocation_tokens": json.loads(sys.argv[4]),
    },
    "grade": {"target_modules": ["q_proj", "gate_proj"], "task_type": "SEQ_CLS"},
}


def base(directory: Path, name: str) -> Any:
    if ADAPTERS[name].get("task_type") == "SEQ_CLS":
        return AutoModelForSequenceClassification.from_pretrained(
            directory, num_labels=3, dtype=torch.float32
        )
    return AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)


@torch.inference_mode()
def main() -> None:
    """Write each into a directory of its name; print logits by name and sequence."""
    directory, sequences = Path(sys.argv[2]), json.loads(sys.argv[3])
    checkpoint = tiny_models.make("llama", directory / "base")
    found: dict[str, list[list[float]]] = {}
    for seed, (name, given) in enumerate(ADAPTERS.items()):
        torch.manual_seed(seed)
        model = get_peft_model(base(checkpoint, name), LoraConfig(**{"task_type": "CAUSAL_LM", **given}))
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.normal_(0, SPREAD)
        model.save_pretrained(directory / name)
        model = PeftModel.from_pretrained(base(checkpoint, name), directory / name).eval()
        model.config.pad_token_id = None
        logits = [model(input_ids=torch.tensor([ids])).logits[0] for ids in sequences]
        found[name] = [(each if each.ndim == 1 else each[-1]).tolist() for each in logits]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
