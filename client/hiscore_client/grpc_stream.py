"""A gRPC stream that carries one request, blocking and async.

tritonclient's blocking stream never tells its user that the server has ended it, so these use the generated stub.
Both raise `InferenceServerException`, as tritonclient does, so that the rules of `retry` apply to them.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import grpc
from tritonclient.grpc import service_pb2_grpc
from tritonclient.utils import InferenceServerException

Metadata: TypeAlias = Sequence[tuple[str, str]]

# hiscore's error codes, and gRPC's names for them.
GRPC_CODES = {
    "INVALID_ARG": "INVALID_ARGUMENT",
    "UNAVAILABLE": "UNAVAILABLE",
    "CANCELLED": "CANCELLED",
    "INTERNAL": "INTERNAL",
}
# Prefix of Triton's own errors while it shuts down.
STOPPING = "Server is stopping"


def make_channel(
    module: Any,
    url: str,
    credentials: grpc.ChannelCredentials | None,
    options: Sequence[tuple[str, Any]],
) -> Any:
    """Open a channel; with tritonclient's options it shares tritonclient's connection.

    Args:
        module: ``grpc`` or ``grpc.aio``.
        credentials: For TLS; None: no TLS.
    """
    if credentials is None:
        return module.insecure_channel(url, options=options)
    return module.secure_channel(url, credentials, options=options)


class _Stream:
    """A stream that may be opened again after it failed."""

    def __init__(self, channel: Any) -> None:
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        self._call: Any = None

    def _start(self, request: Any, timeout: float | None, metadata: Metadata) -> None:
        self.cancel()
        self._call = self._stub.ModelStreamInfer(iter((request,)), timeout=timeout, metadata=metadata)

    def cancel(self) -> None:
        """Cancel the stream at the server, from any thread; does nothing if it has ended."""
        if self._call is not None:
            self._call.cancel()


class GrpcStream(_Stream):
    """A blocking stream."""

    def open(self, request: Any, timeout: float | None, metadata: Metadata) -> Any:
        """Send a request and return its first response, as `read` does.

        Args:
            timeout: Seconds for the whole stream; None: no limit.
        """
        self._start(request, timeout, metadata)
        return self.read()

    def read(self) -> Any:
        """Return the next ``ModelInferResponse``, or None at the end of the stream.

        Raises:
            InferenceServerException: The server answered with an error, or the connection failed.
        """
        with as_triton_errors():
            response = next(self._call, None)
        if response is not None and response.error_message:
            self.finish()
            raise parse_error(response.error_message)
        return response and response.infer_response

    def finish(self) -> None:
        """Wait for the end of the stream, which follows the last response or an error at once.

        Triton 2.51 leaks a stream that is cancelled just as it ends, which then delays its shutdown.
        """
        with suppress(grpc.RpcError):
            for _ in self._call:
                pass


class AsyncGrpcStream(_Stream):
    """`GrpcStream` for asyncio."""

    async def open(self, request: Any, timeout: float | None, metadata: Metadata) -> Any:
        """Open the stream, as `GrpcStream.open` does."""
        self._start(request, timeout, metadata)
        return await self.read()

    async def read(self) -> Any:
        """Read a response, as `GrpcStream.read` does."""
        with as_triton_errors():
            response = await self._call.read()
        if response is grpc.aio.EOF:
            return None
        if response.error_message:
            await self.finish()
            raise parse_error(response.error_message)
        return response.infer_response

    async def finish(self) -> None:
        """End the stream, as `GrpcStream.finish` does."""
        with suppress(grpc.RpcError):
            while await self._call.read() is not grpc.aio.EOF:
                pass


def parse_error(text: str) -> InferenceServerException:
    """Parse an error message of a stream: hiscore's begin with a code, Triton's own do not.

    Triton would send codes under the header triton_grpc_error, but 2.51 then reads freed memory and crashes on
    about one error in a thousand.
    """
    code, _, message = text.partition(": ")
    if code in GRPC_CODES:
        return InferenceServerException(msg=message, status=f"StatusCode.{GRPC_CODES[code]}")
    status = "StatusCode.UNAVAILABLE" if text.startswith(STOPPING) else None
    return InferenceServerException(msg=text, status=status)


@contextmanager
def as_triton_errors() -> Iterator[None]:
    """Turn gRPC's errors into tritonclient's."""
    try:
        yield
    except grpc.RpcError as error:
        raise InferenceServerException(msg=error.details(), status=str(error.code())) from None
