"""Turn texts into token ids, then score those, over gRPC. usage: python tokens_grpc.py [HOST:PORT]"""

import sys

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import InferenceServerClient, InferInput


def text(name: str, values: list[str]) -> InferInput:
    """One row of texts."""
    tensor = InferInput(name, [1, len(values)], "BYTES")
    tensor.set_data_from_numpy(np.array([values], np.object_))
    return tensor


def ids(name: str, values: npt.NDArray[np.int32]) -> InferInput:
    """One row of token ids or positions, int32 [1, n]."""
    tensor = InferInput(name, list(values.shape), "INT32")
    tensor.set_data_from_numpy(values)
    return tensor


items = [" an apple", " a hammer", " a pear"]
inputs = [text("query", ["Is this a fruit? It is"]), text("items", items), text("labels", [" Yes", " No"])]
with InferenceServerClient(sys.argv[1] if len(sys.argv) > 1 else "localhost:8001") as client:
    tokens = client.infer("tokenizer", inputs)
    # Whoever scores the same texts again can keep these.
    kept = [
        ids(name, tokens.as_numpy(name)) for name in ("input_ids", "delimiter_indices", "label_token_ids")
    ]
    answer = client.infer("scorer", kept, parameters={"apply_softmax": True})
for item, (yes, _) in zip(items, answer.as_numpy("scores")[0], strict=True):
    print(f"{yes:.3f}{item}")
