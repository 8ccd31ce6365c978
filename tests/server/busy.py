"""Calls in token space that keep a tiny model busy for a moment."""

from collections.abc import Callable
from threading import Event

import numpy as np
import tritonclient.grpc as triton

from hiscore.scoring.requests.layout import lay_out
from hiscore.scoring.requests.request import MultiItemPrompt


def inputs(items: int, query: int = 390, length: int = 50) -> list[triton.InferInput]:
    """A call of two labels; query, length: tokens of the query and of each item."""
    tokens = [10 + token % 390 for token in range(query)]
    ids, indices = lay_out(MultiItemPrompt.of(tokens, [range(10, 10 + length)] * items))
    tensors = {"input_ids": ids, "delimiter_indices": indices, "label_token_ids": np.array([7, 9], np.int32)}
    made = []
    for name, values in tensors.items():
        made.append(triton.InferInput(name, [1, len(values)], "INT32"))
        made[-1].set_data_from_numpy(values[None])
    return made


def score(client: triton.InferenceServerClient, items: int, timeout_us: int | None = None) -> np.ndarray:
    """Scores of a call that keeps a tiny model busy for a while, float32 [items, 2]."""
    answer = client.infer("scorer", inputs(items), timeout=timeout_us).as_numpy("scores")
    assert answer is not None
    return answer[0]


def until_error(call: Callable[[], object], stop: Event) -> Exception | None:
    """Keep a call in flight until one fails or `stop` is set; return the error."""
    while not stop.is_set():
        try:
            call()
        except Exception as error:
            return error
    return None
