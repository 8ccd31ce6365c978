"""Models that answer every scoring call with the same scores, for tests of what stands before them."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

SCORE = 0.25


class FixedAnswers(service_pb2_grpc.GRPCInferenceServiceServicer):
    """`scorer` as a server has it, without a model."""

    def ModelInfer(self, request: Any, context: Any) -> Any:
        shapes = {each.name: each.shape[1] for each in request.inputs}
        items, columns = shapes["delimiter_indices"] - 1, shapes["label_token_ids"]
        answer = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        answer.outputs.add(name="scores", datatype="FP32", shape=[1, items, columns])
        answer.outputs.add(name="usage", datatype="INT32", shape=[1, 2])
        answer.raw_output_contents.append(np.full((items, columns), SCORE, np.float32).tobytes())
        answer.raw_output_contents.append(np.array([50, 0], np.int32).tobytes())
        return answer


def serve() -> tuple[grpc.Server, int]:
    """Start on a free port of this machine; return the server and its port."""
    server = grpc.server(ThreadPoolExecutor(4))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(FixedAnswers(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    return server, port
