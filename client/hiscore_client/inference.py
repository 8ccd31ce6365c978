"""One inference: its message, and how it is sent over a channel, blocking and async.

Made here rather than by tritonclient, whose objects for tensors and results take longer than the call itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from hiscore_client.errors import ServerFault
from hiscore_client.grpc_stream import Metadata, as_triton_errors

# The fields of Triton's InferParameter.
PARAMETER_FIELDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


@dataclass(frozen=True)
class Tensor:
    """An input.

    Args:
        datatype: Triton's name for it.
        shape: With the batch dimension, if the model has one.
    """

    name: str
    datatype: str
    shape: Sequence[int]
    content: bytes


def id_tensor(name: str, ids: npt.NDArray[np.int32], batch: bool = True) -> Tensor:
    """An INT32 tensor of one dimension, behind a batch dimension of 1."""
    return Tensor(
        name, "INT32", [1, len(ids)] if batch else [len(ids)], ids.astype("<i4", copy=False).tobytes()
    )


def text_tensor(name: str, texts: Sequence[bytes], batch: bool = True) -> Tensor:
    """A BYTES tensor of one dimension, behind a batch dimension of 1."""
    content = b"".join([part for text in texts for part in (len(text).to_bytes(4, "little"), text)])
    return Tensor(name, "BYTES", [1, len(texts)] if batch else [len(texts)], content)


def make_request(
    model: str,
    tensors: Sequence[Tensor],
    parameters: Mapping[str, bool | int | float | str],
    request_id: str,
    timeout: float | None,
    priority: int = 0,
) -> Any:
    """A ``ModelInferRequest``.

    Args:
        timeout: Seconds until the server may drop it; None: no limit.
        priority: Its level in Triton's queue, 1 the highest; 0: the model's default.
    """
    request = service_pb2.ModelInferRequest(model_name=model, id=request_id)
    for tensor in tensors:
        request.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        request.raw_input_contents.append(tensor.content)
    for name, value in parameters.items():
        setattr(request.parameters[name], PARAMETER_FIELDS[type(value)], value)
    if timeout is not None:
        # In microseconds.
        request.parameters["timeout"].int64_param = max(1, int(timeout * 1e6))
    if priority:
        request.parameters["priority"].uint64_param = priority
    return request


def numbers_of(response: Any, name: str) -> npt.NDArray[Any]:
    """A numeric output of a ``ModelInferResponse``; the array cannot be written to.

    Raises:
        ServerFault: There is none of that name, or its data do not have its shape or type.
    """
    index = next((index for index, each in enumerate(response.outputs) if each.name == name), None)
    if index is None:
        raise ServerFault(f"the answer has no '{name}'")
    output = response.outputs[index]
    dtype = triton_to_np_dtype(output.datatype)
    if dtype in (None, np.object_) or index >= len(response.raw_output_contents):
        raise ServerFault(f"'{name}' came back as {output.datatype}, or without data: expected numbers")
    try:
        return np.frombuffer(response.raw_output_contents[index], dtype).reshape(output.shape)
    except ValueError:
        raise ServerFault(f"'{name}' came back with a shape that does not fit its data") from None


class Inferences:
    """Blocking inferences over a channel. Failures are `InferenceServerException`, as tritonclient's."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._send = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer

    def infer(self, request: Any, timeout: float | None, metadata: Metadata) -> Any:
        """Send a request and return its ``ModelInferResponse``."""
        with as_triton_errors():
            return self._send(request, timeout=timeout, metadata=metadata)

    def start(self, request: Any, timeout: float | None, metadata: Metadata) -> grpc.Future:
        """Send a request, whose answer `finish` returns; the future can be cancelled from any thread."""
        return self._send.future(request, timeout=timeout, metadata=metadata)

    def finish(self, started: grpc.Future) -> Any:
        """Wait for the answer of what was started."""
        try:
            with as_triton_errors():
                return started.result()
        except grpc.FutureCancelledError:
            raise InferenceServerException("cancelled by this client", "StatusCode.CANCELLED") from None


class AsyncInferences:
    """`Inferences` for asyncio; cancelling the task cancels the inference."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._send = service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelInfer

    async def infer(self, request: Any, timeout: float | None, metadata: Metadata) -> Any:
        """Send a request, as `Inferences.infer` does."""
        with as_triton_errors():
            return await self._send(request, timeout=timeout, metadata=metadata)
