"""lm-evaluation-harness on local tasks: by its own `hf` model in float32, and by this server's completions."""

import json
import re
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import lm_eval
from exchange import GIVEN, answer

sys.path.append(GIVEN["torch"])  # the server's; behind this environment's own packages

from lm_eval import simple_evaluate
from lm_eval.tasks import TaskManager

PROMPTS = Path(lm_eval.__file__).parent / "tasks/mmlu/flan_cot_fewshot/_cot_prompts.json"
OPTION = r"\(([A-D])\)\s*(.*?)\s*"
QUESTION = re.compile(
    rf"Q: (.*?)\n?{OPTION}{OPTION}{OPTION}{OPTION}\nA: (.*?The answer is \(([A-D])\))", re.DOTALL
)


def items() -> list[dict]:
    """The questions of MMLU that the harness brings along, with their options and explanations."""
    found = []
    for text in json.loads(PROMPTS.read_text()).values():
        for match in QUESTION.finditer(text):
            question, a, b, c, d = (match[group] for group in (1, 3, 5, 7, 9))
            found.append({
                "question": question,
                "choices": [a, b, c, d],
                "gold": "ABCD".index(match[11]),
                "reason": match[10],
            })  # fmt: skip
    return found


KINDS = {
    "multiple_choice": {
        "doc_to_text": "{{question}}\nAnswer:",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{gold}}",
        "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}],
    },
    "loglikelihood": {
        # What was said twice is likely to be said again.
        "doc_to_text": "{{reason}}\n{{reason}}\n{{reason.split()[:-1] | join(' ')}}",
        "doc_to_target": " {{reason.split()[-1]}}",
        "metric_list": [{"metric": "perplexity"}, {"metric": "acc"}],
    },
    "loglikelihood_rolling": {
        "doc_to_text": "",
        "doc_to_target": "{{question}} {{reason}}",
        "metric_list": [{"metric": "word_perplexity"}],
    },
}


def evaluated(tasks: list, backend: str, **arguments: object) -> dict[str, list]:
    """Return what a model of the harness answers to each request of each document."""
    result = simple_evaluate(
        backend,
        arguments,
        tasks,
        task_manager=TaskManager(),
        batch_size=4,
        log_samples=True,
        bootstrap_iters=0,
    )
    return {
        name: [
            [each[0] for each in sample["resps"]] for sample in sorted(samples, key=lambda one: one["doc_id"])
        ]
        for name, samples in result["samples"].items()
    }


with TemporaryDirectory() as directory:
    file = Path(directory) / "items.jsonl"
    chosen = items()[:: GIVEN["every"]]
    file.write_text("\n".join(map(json.dumps, chosen)))
    tasks = [
        {
            "task": kind,
            "output_type": kind,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": {"test": str(file)}, "cache_dir": directory},
            "test_split": "test",
            **fields,
        }
        for kind, fields in KINDS.items()
    ]
    common = {"pretrained": GIVEN["checkpoint"]}
    own = evaluated(tasks, "hf", **common, dtype="float32", device="cpu")
    here = evaluated(
        tasks,
        "local-completions",
        base_url=f"{GIVEN['url']}/v1/completions",
        model="any",
        tokenizer=GIVEN["checkpoint"],
        tokenizer_backend="huggingface",
        num_concurrent=4,
        max_retries=1,
    )
answer(items=len(chosen), own=own, here=here, golds=[each["gold"] for each in chosen])
