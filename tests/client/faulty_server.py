"""A gRPC endpoint that speaks Triton's protocol and fails on demand, which a real server cannot do.

Scores are checksums of query, item and label, so that any mix-up shows; no code is shared with the client.
"""

import json
import struct
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

TENSORS = {
    "score": [("query", "BYTES"), ("items", "BYTES"), ("label_token_ids", "INT32"), ("labels", "BYTES")],
    "scorer": [("input_ids", "INT32"), ("delimiter_indices", "INT32"), ("label_token_ids", "INT32")],
    "decode": [("input_ids", "INT32"), ("text_input", "BYTES")],
}
SCORES = [("scores", "FP32"), ("usage", "INT32")]
STREAM = [("output_ids", "INT32"), ("text_output", "BYTES"), ("finish_reason", "BYTES")]
OUTPUTS = {"score": SCORES, "scorer": SCORES, "decode": STREAM}

Fault = Callable[[grpc.ServicerContext], None]

DEFAULT_STREAM = [
    ([11], b"The ", b""),
    ([12, 13], "größte ".encode(), b""),
    ([], b"", b""),
    ([14], b"\xf0\x9f\x8d\x8e", b"stop"),
]


def checksum(query: bytes, item: bytes, label: bytes) -> float:
    """A score in [0, 1) that no other triple has, but by a chance of one in millions."""
    return zlib.crc32(b"\0".join((query, item, label))) / 2**32


def abort(code: str, message: str) -> Fault:
    return lambda context: context.abort(getattr(grpc.StatusCode, code), message)


class StreamError(Exception):
    """An error of `decode`, with its message as on the wire."""


def refuse(code: str, message: str) -> Fault:
    """Fail a stream as `decode` does; code: hiscore's name for it."""

    def fault(context: grpc.ServicerContext) -> None:
        raise StreamError(f"{code}: {message}")

    return fault


def until_cancelled(context: grpc.ServicerContext) -> None:
    """Answer nothing until the caller gives up."""
    _wait_for(context, lambda: False)


def when(condition: Callable[[], bool]) -> Fault:
    """Answer once a condition holds, or give up as soon as the caller has."""
    return lambda context: _wait_for(context, condition)


def delay(seconds: float) -> Fault:
    """Be slow, or give up as soon as the caller has."""

    def wait(context: grpc.ServicerContext) -> None:
        end = time.monotonic() + seconds
        _wait_for(context, lambda: time.monotonic() > end)

    return wait


def _wait_for(context: grpc.ServicerContext, condition: Callable[[], bool]) -> None:
    while context.is_active() and not condition():
        time.sleep(0.005)


class FaultyServer(service_pb2_grpc.GRPCInferenceServiceServicer):
    """faults: what happens to the next requests, one each; cancelled: requests that their callers gave up."""

    def __init__(self) -> None:
        self.faults: deque[Fault] = deque()
        self.requests: list[service_pb2.ModelInferRequest] = []
        self.metadata: list[dict[str, str]] = []
        self.cancelled = 0
        self.running = 0
        self.most_running = 0
        self.work_seconds = 0.0
        self.ready = {"score", "scorer"}
        self.ready_after = 0
        self.readiness_checks = 0
        self.tensors = dict(TENSORS)
        self.change: Callable[[dict[str, np.ndarray]], None] = lambda outputs: None
        # What a stream does between its chunks, which one by one are (token ids, text, finish reason).
        self.stream: list[tuple[list[int], bytes, bytes] | Fault] = list(DEFAULT_STREAM)
        self.ended_streams = 0
        self._lock = threading.Lock()

    def ModelStreamInfer(self, requests: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        """As Triton and `decode` do: an error is a text that begins with its code, then the stream ends."""
        request = next(requests)
        fault = self._begin(request, context)
        try:
            if fault is not None:
                fault(context)
            for entry in self.stream:
                if callable(entry):
                    entry(context)
                elif context.is_active():
                    yield _chunk(request, *entry)
        except StreamError as error:
            yield service_pb2.ModelStreamInferResponse(error_message=str(error))
        finally:
            with self._lock:
                self.cancelled += not context.is_active()
                self.running -= 1
                self.ended_streams += 1

    def ModelInfer(self, request: Any, context: grpc.ServicerContext) -> Any:
        fault = self._begin(request, context)
        try:
            time.sleep(self.work_seconds)
            if fault is not None:
                fault(context)
            if not context.is_active():
                self.cancelled += 1
            return self._answer(request)
        finally:
            with self._lock:
                self.running -= 1

    def ServerLive(self, request: Any, context: grpc.ServicerContext) -> Any:
        return service_pb2.ServerLiveResponse(live=True)

    def ModelReady(self, request: Any, context: grpc.ServicerContext) -> Any:
        self.readiness_checks += 1
        self.ready_after -= 1
        return service_pb2.ModelReadyResponse(ready=request.name in self.ready and self.ready_after < 0)

    def ModelMetadata(self, request: Any, context: grpc.ServicerContext) -> Any:
        response = service_pb2.ModelMetadataResponse(name=request.name)
        for name, datatype in self.tensors[request.name]:
            response.inputs.add(name=name, datatype=datatype)
        for name, datatype in OUTPUTS[request.name]:
            response.outputs.add(name=name, datatype=datatype)
        return response

    def _begin(self, request: Any, context: grpc.ServicerContext) -> Fault | None:
        with self._lock:
            self.requests.append(request)
            self.metadata.append(dict(context.invocation_metadata()))
            self.running += 1
            self.most_running = max(self.most_running, self.running)
            return self.faults.popleft() if self.faults else None

    def _answer(self, request: Any) -> Any:
        inputs = {
            tensor.name: (tensor.datatype, list(tensor.shape), content)
            for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True)
        }
        values = {name: _read(*tensor) for name, tensor in inputs.items()}
        labels = [str(label).encode() for label in values.get("label_token_ids", [])] + values.get(
            "labels", []
        )
        if "label_lengths" in request.parameters:
            tokens_of_labels = iter(labels)
            lengths = json.loads(request.parameters["label_lengths"].string_param)
            labels = [b"+".join(islice(tokens_of_labels, length)) for length in lengths]
        if request.model_name == "score":
            query, items = values["query"][0], values["items"]
            tokens = len(query) + sum(map(len, items))
        else:
            ids, ends = values["input_ids"], values["delimiter_indices"]
            starts = [0] + [end + 1 for end in ends[:-1]]
            query, *items = (repr(ids[start:end]).encode() for start, end in zip(starts, ends, strict=True))
            tokens = len(ids) - len(ends)
        given = (
            request.parameters["label_counts"].string_param if "label_counts" in request.parameters else ""
        )
        counts = json.loads(given or "null") or [len(labels)] * len(items)
        own = iter(labels)
        scores = np.zeros((1, len(items), max(counts, default=len(labels))), np.float32)
        for row, (item, count) in enumerate(zip(items, counts, strict=True)):
            chosen = islice(own, count) if given else labels
            scores[0, row, :count] = [checksum(query, item, label) for label in chosen]
        outputs = {
            "scores": scores,
            "usage": np.array([[tokens, 1]], dtype=np.int32),
        }
        if "token_logprobs" in request.parameters:
            outputs |= tokens_told(
                values["label_token_ids"], request.parameters["token_logprobs"].int64_param
            )
        self.change(outputs)
        response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
        for name, value in outputs.items():
            datatype = {"float32": "FP32", "float64": "FP64", "int32": "INT32"}[value.dtype.name]
            response.outputs.add(name=name, datatype=datatype, shape=value.shape)
            response.raw_output_contents.append(value.tobytes())
        return response


def tokens_told(ids: list[int], top: int) -> dict[str, np.ndarray]:
    """Of each token that its logarithm is -id / 1000, its rank id % 3 + 1, and the likeliest the ids from 1 on."""
    values = np.array(ids, np.float32) / -1000
    return {
        "token_logprobs": values[None],
        "token_ranks": (np.array(ids, np.int32) % 3 + 1)[None],
        "token_top_ids": np.tile(np.arange(1, top + 1, dtype=np.int32), (1, len(ids), 1)),
        "token_top_logprobs": np.tile(np.arange(1, top + 1, dtype=np.float32) / -8, (1, len(ids), 1)),
    }


def _chunk(request: Any, ids: list[int], text: bytes, reason: bytes) -> Any:
    response = service_pb2.ModelInferResponse(model_name=request.model_name, id=request.id)
    for (name, datatype), shape in zip(STREAM, ([len(ids)], [1], [1]), strict=True):
        response.outputs.add(name=name, datatype=datatype, shape=shape)
    strings = [struct.pack("<I", len(value)) + value for value in (text, reason)]
    response.raw_output_contents.extend([np.array(ids, "<i4").tobytes(), *strings])
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def _read(datatype: str, shape: list[int], content: bytes) -> list[Any]:
    assert len(shape) == 2
    assert shape[0] == 1
    if datatype == "INT32":
        values: list[Any] = np.frombuffer(content, dtype="<i4").tolist()
    else:
        values, place = [], 0
        while place < len(content):
            (length,) = struct.unpack_from("<I", content, place)
            values.append(content[place + 4 : place + 4 + length])
            place += 4 + length
    assert len(values) == shape[1]
    return values


@contextmanager
def serving(servicer: FaultyServer, address: str = "127.0.0.1:0") -> Iterator[str]:
    """Serve on loopback; gives the address."""
    # Without the first a second server could take the same port; the second is as Triton has it.
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
    server = grpc.server(ThreadPoolExecutor(16), options=options)
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(servicer, server)
    port = server.add_insecure_port(address)
    server.start()
    try:
        yield address if address.startswith("unix:") else f"127.0.0.1:{port}"
    finally:
        server.stop(grace=0).wait()
