"""Score three items over HTTP. usage: python score_http.py [HOST:PORT]"""

import sys

import numpy as np
from tritonclient.http import InferenceServerClient, InferInput


def text(name: str, values: list[str]) -> InferInput:
    """One row of texts."""
    tensor = InferInput(name, [1, len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array([values], np.object_))
    return tensor


items = [" an apple", " a hammer", " a pear"]
inputs = [text("query", ["Is this a fruit? It is"]), text("items", items), text("labels", [" Yes", " No"])]
with InferenceServerClient(sys.argv[1] if len(sys.argv) > 1 else "localhost:8000") as client:
    answer = client.infer("score", inputs, parameters={"apply_softmax": True})
for item, (yes, _) in zip(items, answer.as_numpy("scores")[0], strict=True):
    print(f"{yes:.3f}{item}")
