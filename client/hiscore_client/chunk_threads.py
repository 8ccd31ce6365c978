"""The chunks of one call of the blocking client, sent from several threads."""

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from typing import Any

from tritonclient.grpc import InferenceServerClient

from hiscore_client.errors import Cancelled
from hiscore_client.inference import Inferences
from hiscore_client.sans_io import Operation, Rpc, Sleep, T, run


@contextmanager
def closed_as_cancelled(closed: threading.Event) -> Iterator[None]:
    """Turn gRPC's ValueError for a call on a closed channel into `Cancelled`."""
    try:
        yield
    except ValueError:
        if closed.is_set():
            raise Cancelled("the client is closed") from None
        raise


class ChunkThreads:
    """Runs the chunks of one call, several at a time; the first failure stops the others.

    Args:
        triton: Asks whether the server lives.
        inferences: Sends the requests.
        closed: Set once the client has been closed.
    """

    def __init__(
        self, triton: InferenceServerClient, inferences: Inferences, closed: threading.Event
    ) -> None:
        self._triton, self._inferences = triton, inferences
        self._closed = closed
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._in_flight: set[Any] = set()
        self.first_failure: BaseException | None = None

    def run_all(
        self, operations: Sequence[Operation[T]], max_in_flight: int, on_result: Callable[[T], None]
    ) -> list[T]:
        """Run all chunks of the call.

        Args:
            operations: One per chunk.
            max_in_flight: Chunks at a time.
            on_result: Called with each result as it arrives.

        Returns:
            The results, in the order of the chunks.

        Raises:
            HiscoreError: The first failure, not those that it caused.
        """
        with ThreadPoolExecutor(min(max_in_flight, len(operations))) as pool:
            futures = [pool.submit(self.run, operation) for operation in operations]
            try:
                for future in as_completed(futures):
                    on_result(future.result())
            except BaseException as error:
                # A chunk cancelled by the first failure may have finished before the failed one.
                first = self.first_failure or error
                self.stop()
                raise first from first.__cause__
        return [future.result() for future in futures]

    def run(self, operation: Operation[T]) -> T:
        """Run one chunk on this thread; a failure stops the others before this thread can take the next chunk.

        Raises:
            Cancelled: Another chunk failed.
            HiscoreError: This one did.
        """
        if self._stopped.is_set():
            # Before the chunk's tensors are built.
            raise Cancelled("another part of the call has failed")
        try:
            return run(operation, self._perform)
        except BaseException as error:
            with self._lock:
                self.first_failure = self.first_failure or error
            self.stop()
            raise

    def stop(self) -> None:
        """Cancel the requests in flight and start no more."""
        with self._lock:
            self._stopped.set()
            in_flight = list(self._in_flight)
        for call in in_flight:
            call.cancel()

    def _perform(self, step: Rpc | Sleep) -> Any:
        if isinstance(step, Sleep):
            self._stopped.wait(step.seconds)
            return None
        if step.method != "infer":
            with closed_as_cancelled(self._closed):
                return getattr(self._triton, step.method)(**step.arguments)
        # Under the lock, so that `stop` cannot miss a request that is just being sent.
        with self._lock:
            if self._stopped.is_set():
                raise Cancelled("another part of the call has failed")
            with closed_as_cancelled(self._closed):
                call = self._inferences.start(**step.arguments)
            self._in_flight.add(call)
        try:
            return self._inferences.finish(call)
        finally:
            with self._lock:
                self._in_flight.discard(call)
