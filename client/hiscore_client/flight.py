"""The chunks of one call of the blocking client, under way in several threads."""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from tritonclient.grpc import InferenceServerClient

from hiscore_client.errors import Cancelled
from hiscore_client.steps import Ask, Pause, Steps, T, drive


@contextmanager
def closing_as_cancelled(closed: threading.Event) -> Iterator[None]:
    """gRPC answers a question on a closed channel with a ValueError; say what it means."""
    try:
        yield
    except ValueError:
        if closed.is_set():
            raise Cancelled("the client is closed") from None
        raise


class Flight:
    """The chunks of one call under way in several threads, so that the failure of one can stop the others."""

    def __init__(self, triton: InferenceServerClient, closed: threading.Event) -> None:
        self._triton = triton
        self._closed = closed
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._under_way: set[Any] = set()
        self.failure: BaseException | None = None

    def run(self, steps: Steps[T]) -> T:
        """Run one chunk's steps; the first failure stops the flight before its thread can take the next chunk."""
        if self._stopped.is_set():
            # Before the chunk's tensors are built.
            raise Cancelled("another part of the call has failed")
        try:
            return drive(steps, self._perform)
        except BaseException as error:
            with self._lock:
                self.failure = self.failure or error
            self.stop()
            raise

    def stop(self) -> None:
        """Cancel what is under way; nothing new starts."""
        with self._lock:
            self._stopped.set()
            under_way = list(self._under_way)
        for context in under_way:
            context.cancel()

    def _perform(self, step: Ask | Pause) -> Any:
        if isinstance(step, Pause):
            self._stopped.wait(step.seconds)
            return None
        if step.method != "infer":
            with closing_as_cancelled(self._closed):
                return getattr(self._triton, step.method)(**step.arguments)
        answer: Future[Any] = Future()

        def settle(result: Any, error: Any) -> None:
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        with self._lock:
            if self._stopped.is_set():
                raise Cancelled("another part of the call has failed")
            with closing_as_cancelled(self._closed):
                context = self._triton.async_infer(callback=settle, **step.arguments)
            self._under_way.add(context)
        try:
            return answer.result()
        finally:
            with self._lock:
                self._under_way.discard(context)
