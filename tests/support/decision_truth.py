"""What a question's answer must be: transformers on that question's own full prompt, built here by hand."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
from transformers import AutoTokenizer

from tests.support.comparison import truth_of

tokenizer_of = cache(AutoTokenizer.from_pretrained)
ENDINGS = {
    "predicate": 'Answer only "Yes" or "No".',
    "choice": "Answer only with the label of the best option.",
    "score": "Answer only with the number of the best level.",
}


def prompt_of(checkpoint: Path, messages: Sequence[dict[str, str]], question: str) -> str:
    """The whole prompt by transformers' own chat template, or plainly without one.

    Args:
        checkpoint: Its directory.
        messages: The state; the last is the user's.
        question: Its instructions, options and ending.
    """
    tokenizer = tokenizer_of(checkpoint)
    *earlier, last = messages
    content = f"{last['content']}\n\nQuestion: {question}"
    if tokenizer.chat_template is None:
        return (
            "\n\n".join([*(f"{each['role']}: {each['content']}" for each in earlier), content]) + "\nAnswer:"
        )
    return tokenizer.apply_chat_template(
        [*earlier, {"role": last["role"], "content": content}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,
    )


def answer_of(checkpoint: Path, prompt: str, labels: Sequence[str]) -> tuple[np.ndarray, float]:
    """The probabilities of the labels' tokens behind the prompt, of several their product, and their mass.

    Args:
        checkpoint: Its directory.
        prompt: With everything but the tokens that a tokenizer puts before every text without a chat template.
        labels: Texts as they stand behind the prompt.
    """
    tokenizer = tokenizer_of(checkpoint)
    special = tokenizer.chat_template is None
    ids = tokenizer(prompt, add_special_tokens=special)["input_ids"]
    truth, tokens = truth_of(checkpoint), []
    for label in labels:
        whole = tokenizer(prompt + label, add_special_tokens=special)["input_ids"]
        assert whole[: len(ids)] == ids
        tokens.append(tuple(whole[len(ids) :]))
    assert len(set(tokens)) == len(labels)
    if all(len(each) == 1 for each in tokens):
        over_all = truth.scores([], [ids], [token for (token,) in tokens])[0]
    else:
        # Each token given those before it, one forward of the whole text for each.
        over_all = np.array(
            [
                np.prod([truth.scores([], [[*ids, *each[:at]]], [each[at]])[0, 0] for at in range(len(each))])
                for each in tokens
            ]
        )
    return over_all / over_all.sum(), float(over_all.sum())
