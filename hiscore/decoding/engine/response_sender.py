"""Sends streamed responses: one thread sends for all streams, and notices which callers have cancelled.

Sending a response is a round trip of a fraction of a millisecond, so producers never wait for it: they queue their
outputs, and what accumulates for a stream meanwhile goes out as one response.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from hiscore.arrays import Outputs
from hiscore.decoding.sequence import Output
from hiscore.errors import RequestError, to_request_error

log = logging.getLogger(__name__)

# Polling for a cancellation is a round trip as well: every POLL_S seconds, MAX_POLLED streams at a time.
POLL_S = 0.05
MAX_POLLED = 64


@dataclass(eq=False)
class ResponseStream:
    """Identifies a stream outside of the sender's thread, which alone may touch its fields.

    Attributes:
        reply_to: Gets the responses. None after the last: Triton does not unload a model while anything refers to
            a response sender.
        whole: Everything is sent in one response, at the end.
        shape: Makes the tensors of a response of those that every stream has.
    """

    reply_to: Any
    pending: list[Output] = field(default_factory=list)
    error: RequestError | None = None
    cancelled: bool = False
    whole: bool = False
    shape: Callable[[Outputs], Outputs] = dict

    @property
    def ready(self) -> bool:
        """Return whether there is something to send now."""
        return self.complete or bool(self.pending and not self.whole)

    @property
    def complete(self) -> bool:
        """Return whether the stream's last output, or its error, is pending."""
        return bool(self.error or (self.pending and self.pending[-1].finish_reason))


class ResponseSender:
    """Sends the outputs of each stream in order, then exactly one last response; its thread calls all arguments.

    Args:
        send: Sends one response, `(reply_to, outputs or error, last)`; returns whether the stream is still open.
        cancel: Called with a stream whose caller has cancelled, repeatedly until its last output comes, which is
            expected nevertheless; and with one that ends early since a response cannot be made.
    """

    def __init__(
        self,
        send: Callable[[Any, Outputs | RequestError, bool], bool],
        is_cancelled: Callable[[Any], bool],
        cancel: Callable[[ResponseStream], None],
    ) -> None:
        self._send, self._is_cancelled, self._cancel = send, is_cancelled, cancel
        self._queue: SimpleQueue[tuple[ResponseStream, Output | RequestError | None] | None] = SimpleQueue()
        self._open: dict[ResponseStream, None] = {}  # the one polled longest ago first
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="hiscore-sender", daemon=True)
        self._thread.start()

    def open(
        self, reply_to: Any, whole: bool = False, shape: Callable[[Outputs], Outputs] = dict
    ) -> ResponseStream:
        """Begin a stream, whose caller is polled from now on."""
        stream = ResponseStream(reply_to, whole=whole, shape=shape)
        self._queue.put((stream, None))
        return stream

    def put(self, stream: ResponseStream, output: Output | RequestError) -> None:
        """Queue the next output of a stream. An error is its last; later ones are dropped."""
        self._queue.put((stream, output))

    def close(self) -> None:
        """Send what was put, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        poll_at = 0.0
        while not self._closing:
            self._receive()
            for stream in [stream for stream in self._open if stream.ready]:
                self._deliver(stream)
            if time.monotonic() >= poll_at:
                self._poll_cancellations()
                poll_at = time.monotonic() + POLL_S

    def _receive(self) -> None:
        try:
            entry = self._queue.get(timeout=POLL_S if self._open else None)
            while True:
                self._accept(entry)
                entry = self._queue.get_nowait()
        except Empty:
            return

    def _accept(self, entry: tuple[ResponseStream, Output | RequestError | None] | None) -> None:
        if entry is None:
            self._closing = True
            return
        stream, output = entry
        if output is None:
            self._open[stream] = None
        elif stream.complete or stream not in self._open:
            return
        elif isinstance(output, RequestError):
            stream.error = output
        else:
            stream.pending.append(output)

    def _deliver(self, stream: ResponseStream) -> None:
        """Send what is pending: at most one response with outputs, and perhaps an error."""
        pending, stream.pending = stream.pending, []
        still_open, ended = True, False
        if pending and not (stream.whole and stream.error):
            try:
                outputs = stream.shape(join(pending))
            except Exception as error:
                stream.error = to_request_error(error)
                self._try(self._cancel, stream)
            else:
                ended = bool(pending[-1].finish_reason)
                still_open = self._try(self._send, stream.reply_to, outputs, ended)
        if stream.error and still_open:
            ended = True
            self._try(self._send, stream.reply_to, stream.error, True)
        if ended or not still_open:
            del self._open[stream]
            stream.reply_to = None
        if not (ended or still_open or stream.cancelled):
            self._try(self._cancel, stream)

    def _poll_cancellations(self) -> None:
        for stream in [*islice(self._open, MAX_POLLED)]:
            self._open[stream] = self._open.pop(stream)
            stream.cancelled = stream.cancelled or self._try(self._is_cancelled, stream.reply_to)
            if stream.cancelled:
                # Repeatedly: the first time may be too early, while the request is still being read.
                self._try(self._cancel, stream)

    def _try(self, call: Callable[..., Any], *arguments: Any) -> bool:
        """Call, and return False on an error: that of one stream must not end the thread that serves all."""
        try:
            return bool(call(*arguments))
        except Exception:
            log.exception("sending to a stream failed")
            return False


def join(outputs: Sequence[Output]) -> Outputs:
    """Join consecutive outputs of a stream into the tensors of one response.

    Returns:
        ids int32 [n]; text, reason and stop string [1]; usage int32 [3]; log-probabilities float32 [n], with ids
        int32 and log-probabilities float32 [n, K] of the likeliest tokens. The latter are empty if not asked for.
    """
    ids = [token for output in outputs for token in output.token_ids]
    logprobs = [of_token for output in outputs for of_token in output.logprobs]
    alternatives = len(logprobs[0].top_ids) if logprobs else 0
    shape = (len(logprobs), alternatives)
    return {
        "output_ids": np.array(ids, np.int32),
        "text_output": _string("".join(output.text for output in outputs)),
        "finish_reason": _string(outputs[-1].finish_reason),
        "usage": np.array(outputs[-1].usage, np.int32),
        "matched_stop": _string(outputs[-1].matched_stop),
        "output_logprobs": np.array([each.chosen for each in logprobs], np.float32),
        "top_token_ids": np.array([each.top_ids for each in logprobs], np.int32).reshape(shape),
        "top_logprobs": np.array([each.top_values for each in logprobs], np.float32).reshape(shape),
    }


def _string(text: str) -> npt.NDArray[Any]:
    return np.array([text.encode()], np.object_)
