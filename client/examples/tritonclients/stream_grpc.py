"""Stream a generation over gRPC. usage: python stream_grpc.py [HOST:PORT]"""

import queue
import sys
from typing import Any

import numpy as np
from tritonclient.grpc import InferenceServerClient, InferInput

prompt = InferInput("text_input", [1], "BYTES")
prompt.set_data_from_numpy(np.array(["The capital of France is"], np.object_))
answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
with InferenceServerClient(sys.argv[1] if len(sys.argv) > 1 else "localhost:8001") as client:
    client.start_stream(lambda result, error: answers.put((result, error)))
    client.async_stream_infer("decode", [prompt], parameters={"max_tokens": 16})
    while True:
        result, error = answers.get()
        if error is not None:
            sys.exit(str(error))
        print(result.as_numpy("text_output")[0].decode(), end="", flush=True)
        if result.as_numpy("finish_reason")[0]:
            break
print()
