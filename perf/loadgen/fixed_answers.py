"""Models that answer every scoring call with the same scores, for measurements of what stands before them.

usage: python -m perf.loadgen.fixed_answers [MS]  (prints its port, serves until it is stopped; answers after MS)
"""

import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

SCORE = 0.25


class FixedAnswers(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """`scorer` and `score` as a server has them, without a model.

    Args:
        after_s: Seconds until they answer.
    """

    def __init__(self, after_s: float = 0.0) -> None:
        self._after_s = after_s

    def ModelInfer(self, request: Any, context: Any) -> Any:
        """Scores of the shape that the request asks for."""
        if self._after_s:
            time.sleep(self._after_s)
        shapes = {each.name: each.shape[1] for each in request.inputs}
        items = shapes["items"] if "items" in shapes else shapes["delimiter_indices"] - 1
        columns = shapes.get("label_token_ids") or shapes["labels"]
        if "label_counts" in request.parameters:
            columns = max(json.loads(request.parameters["label_counts"].string_param))
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        answer.outputs.add(name="scores", datatype="FP32", shape=[1, items, columns])
        answer.outputs.add(name="usage", datatype="INT32", shape=[1, 2])
        answer.raw_output_contents.append(np.full((items, columns), SCORE, np.float32).tobytes())
        answer.raw_output_contents.append(np.array([50, 0], np.int32).tobytes())
        return answer

    def ServerLive(self, request: Any, context: Any) -> Any:
        """It is."""
        return service_pb2.ServerLiveResponse(live=True)

    def ServerReady(self, request: Any, context: Any) -> Any:
        """It is."""
        return service_pb2.ServerReadyResponse(ready=True)

    def ModelReady(self, request: Any, context: Any) -> Any:
        """All of them are."""
        return service_pb2.ModelReadyResponse(ready=True)


def serve(after_s: float = 0.0) -> tuple[grpc.Server, int]:
    """Start on a free port of this machine, with answers after some seconds."""
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(FixedAnswers(after_s), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port


if __name__ == "__main__":
    server, port = serve(float(sys.argv[1]) / 1e3 if len(sys.argv) > 1 else 0.0)
    print(port, flush=True)
    server.wait_for_termination()
