"""A gRPC stream with one request in it, blocking and for asyncio.

tritonclient's own blocking stream never tells its user that the server has ended it, so these use the generated
stub. Both raise `InferenceServerException`, as tritonclient does, so that the rules of `retry` hold for them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

Metadata = Sequence[tuple[str, str]]

# hiscore's codes, and gRPC's names for them.
CODES = {
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNAVAILABLE": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
    "INTERNAL": "INTERNAL",
}
# How Triton's own errors begin while it stops.
STOPPING = "Server is stopping"


def make_channel(
    module: Any,
    url: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
) -> Any:
    """A channel of ``grpc`` or of ``grpc.aio``; with the same options it shares tritonclient's connection."""
    if credentials is None:
        return module.insecure_channel(url, options=options)
    return module.secure_channel(url, credentials, options=options)


class Stream:
    """Opened perhaps several times, one after the other; `cancel` may come from any thread."""

    def __init__(self, channel: Any) -> None:
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._call: Any = None

    def open(self, request: Any, timeout: float | None, metadata: Metadata) -> Any:
        """Send a request and wait for its first response. timeout: seconds for the whole stream."""
        self.cancel()
        self._call = self._stub.ModelStreamInfer(iter((request,)), timeout=timeout, metadata=metadata)
        return self.read()

    def read(self) -> Any:
        """The next ``ModelInferResponse``, or None at the end of the stream."""
        with _as_triton_raises():
            response = next(self._call, None)
        if response is not None and response.error_message:
            self.finish()
            raise error_of(response.error_message)
        return response and response.infer_response

    def finish(self) -> None:
        """After the last response, or an error, wait for the end, which follows at once.

        A stream that is cancelled just as it ends is held by Triton 2.51 for ever, and delays its stopping.
        """
        with suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def cancel(self) -> None:
        """Give the stream up; the server is told. Does nothing if it has ended."""
        if self._call is not None:
            self._call.cancel()


class AsyncStream:
    """The twin of `Stream`."""

    def __init__(self, channel: Any) -> None:
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._call: Any = None

    async def open(self, request: Any, timeout: float | None, metadata: Metadata) -> Any:
        """As `Stream.open`."""
        self.cancel()
        self._call = self._stub.ModelStreamInfer(iter((request,)), timeout=timeout, metadata=metadata)
        return await self.read()

    async def read(self) -> Any:
        """As `Stream.read`."""
        with _as_triton_raises():
            response = await self._call.read()
        if response is grpc.aio.EOF:
            return None
        if response.error_message:
            await self.finish()
            raise error_of(response.error_message)
        return response.infer_response

    async def finish(self) -> None:
        """As `Stream.finish`."""
        with suppress(grpc.RpcError):
            while await self._call.read() is not grpc.aio.EOF:
                pass

    def cancel(self) -> None:
        """As `Stream.cancel`."""
        if self._call is not None:
            self._call.cancel()


def error_of(text: str) -> InferenceServerException:
    """The error that a stream gives as a text: hiscore begins it with its code, Triton has none for its own.

    Triton has a header that makes it send codes (triton_grpc_error); under it Triton 2.51 reads what it has freed,
    and dies with one error in some thousand.
    """
    code, _, message = text.partition(": ")
    if code in CODES:
        return InferenceServerException(msg=message, status=f"StatusCode.{CODES[code]}")
    status = "StatusCode.UNAVAILABLE" if text.startswith(STOPPING) else None
    return InferenceServerException(msg=text, status=status)


@contextmanager
def _as_triton_raises() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as error:
        raise InferenceServerException(msg=error.details(), status=str(error.code())) from None
